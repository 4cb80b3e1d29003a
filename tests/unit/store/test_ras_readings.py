"""What NCCL's own service said of a job, kept in a store."""

from tests.activities import RAS, capture, ras
from tests.unit.store.stores import ask, read, write


def test_answers_are_read_back_and_can_be_asked(tmp_path):
    """As they came; a view has a row for each communicator."""
    answers = [ras(1, RAS), ras(2, is_there=False)]
    path = write(tmp_path / "store.db", [capture(), *answers])

    assert [one for one in read(path) if one in answers] == answers
    columns = "comm, ranks, answering, unresponsive, dead, missing"
    assert ask(path, f"SELECT {columns} FROM v_ras") == [("ae94423cfbb2ef4a", 4, 2, 1, 1, None)]
