"""Dumps of a job that hangs, from the files to the report: who is missing, who disagrees, or nobody."""

import json
import os
from importlib import resources

import pytest
from jsonschema import validate

from otel_gpu import cli
from tests.unit.importers.flight_dumps import HELD_UP, T0, dump, entry, run, write

SCHEMA = json.loads(resources.files("otel_gpu.findings").joinpath("schema.json").read_text("utf-8"))
# Ten minutes after the last call, as PyTorch gives up.
AT = T0 + 600 * 10**9


@pytest.fixture
def report(tmp_path, capsys, monkeypatch):
    """Import the dumps of ranks, and return what is said of them."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)

    def make(ranks):
        for path in write(tmp_path, ranks):
            os.utime(path, ns=(AT, AT))
        command = ["import", "nccl-flight-recorder", str(tmp_path)]
        assert cli.main([*command, "--json"]) == 0
        made = json.loads(capsys.readouterr().out)["report"]
        validate(made, SCHEMA)
        assert cli.main(command) == 0
        return made, capsys.readouterr().out

    return make


def stack_of(made, name):
    return [frame["function"] for frame in made["stacks"][name]["frames"]]


def test_a_rank_that_did_not_call_is_missing(report):
    """The others wait for it; where each of them does, and where that one was last, is said."""
    late = dump([*run(55, done=55)["entries"], entry(56, frames=HELD_UP)])

    made, text = report({rank: late if rank == 2 else run(57, done=56) for rank in range(4)})

    (one,) = made["communicators"]
    assert (one["state"], one["number"], one["rank_count"]) == ("rank_missing", 57, 4)
    assert "not called by rank 2" in one["waiting"]
    assert [rank["where"]["function"] for rank in one["ranks"]] == [
        "reduce_gradients", "reduce_gradients", "log_loss", "reduce_gradients",
    ]  # fmt: skip
    assert stack_of(made, one["ranks"][0]["stack"]) == [
        "all_reduce",
        "reduce_gradients",
        "<module>",
    ]
    (incident,) = made["incidents"]
    assert (incident["severity"], incident["causes"][0]["kind"]) == ("high", "collective_wait")
    assert incident["causes"][0]["culprit"]["comm"] == "rank 2"
    assert len(incident["chains"]) == 3
    chain = made["chains"][0]
    assert (chain["effect"]["kind"], chain["effect"]["api"]) == ("hung_collective", "all_reduce")
    assert stack_of(made, chain["effect"]["stack"])[-2:] == ["reduce_gradients", "<module>"]
    assert "3 x hung in all_reduce" in text
    assert "(-" not in text


def test_ranks_that_ask_for_different_things_disagree(report):
    """What each of them asked for is said."""
    odd = dump([*run(56, done=56)["entries"], entry(57, state="started", sizes=((2048,),))])

    made, _ = report({rank: odd if rank == 1 else run(57, done=56) for rank in range(4)})

    (one,) = made["communicators"]
    assert (one["state"], one["number"]) == ("ranks_disagree", 57)
    assert "rank 1 asked for all_reduce of 2,048 float32" in one["waiting"]
    assert "rank 0, rank 2, rank 3 asked for all_reduce of 1,024 float32" in one["waiting"]
    assert made["incidents"][0]["causes"][0]["kind"] == "collective_mismatch"


def test_what_all_called_and_none_has_done_is_the_device_or_the_network(report):
    """Nobody is to blame."""
    made, _ = report({rank: run(57, done=56) for rank in range(4)})

    (one,) = made["communicators"]
    assert one["state"] == "queued"
    (cause,) = made["incidents"][0]["causes"]
    assert (cause["kind"], cause["culprit"]) == ("collective_stuck", None)


def test_a_job_that_went_on_has_no_incident(report):
    """All is done, but for what was called just now."""
    made, _ = report({rank: run(57, done=57) for rank in range(4)})

    assert made["incidents"] == []
    assert made["communicators"][0]["state"] == "running"


def test_a_rank_far_ahead_is_compared_where_the_others_are(report):
    """Thousands of collectives may be queued behind the one that hangs."""
    made, _ = report({rank: run(56 if rank == 2 else 1_500, done=56) for rank in range(4)})

    (one,) = made["communicators"]
    assert (one["state"], one["number"]) == ("rank_missing", 57)
    assert [rank["pending"] for rank in one["ranks"]] == [1_444, 1_444, 0, 1_444]


def test_a_group_that_one_rank_never_used(report):
    """It hangs before its first call there."""
    other = {"7": {"name": "7", "desc": "data_parallel", "ranks": "[0, 1]"}}
    waits = entry(1, record=56, process_group=("7", "data_parallel"), pg_id=3, state="started")
    ahead = dump([*run(56, done=56)["entries"], waits], ranks=(0, 1), groups=other)
    behind = run(56, done=56, ranks=(0, 1), groups=other)

    made, _ = report({0: ahead, 1: behind})

    state = {one["state"]: one["waiting"] for one in made["communicators"]}
    assert set(state) == {"rank_missing", "running"}
    assert "1 of communicator 7 (data_parallel): not called by rank 1" in state["rank_missing"]


def test_all_ranks_of_a_large_job_are_compared(report):
    """One of them is named."""
    size = 80
    dumps = {
        rank: run(3 if rank == 37 else 4, done=3, ranks=tuple(range(size))) for rank in range(size)
    }

    made, _ = report(dumps)

    (one,) = made["communicators"]
    assert "not called by rank 37" in one["waiting"]


def test_a_store_says_what_the_import_said(tmp_path, capsys, monkeypatch):
    """With the stacks of the calls, of more of them than a reading of our own has."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    for path in write(dumps, {rank: run(56 if rank == 2 else 95, done=56) for rank in range(4)}):
        os.utime(path, ns=(AT, AT))
    store = str(tmp_path / "store.db")
    command = ["import", "nccl-flight-recorder", str(dumps), "--store", store, "--json"]
    assert cli.main(command) == 0
    imported = json.loads(capsys.readouterr().out)["report"]
    assert cli.main(["explain", "--store", store, "--json"]) == 0
    kept = json.loads(capsys.readouterr().out)

    for part in ("communicators", "incidents", "chains", "stacks", "losses"):
        assert kept[part] == imported[part]
    assert kept["communicators"][0]["ranks"][0]["where"]["function"] == "reduce_gradients"
