"""Walks that need not be done again."""

from otel_gpu.stacks.unwind.cached_walks import Walks


def test_the_same_words_give_the_same_stack():
    """Only the words that the walk read count."""
    walks = Walks()
    walks.keep("key", (10, 11, 12, 13), (0, 2), 5)

    assert walks.find("key", (10, 11, 12, 0, 13), 0, 0) == 5
    assert walks.find("key", (10, 99, 12, 0, 99), 0, 0) == 5
    assert walks.find("key", (10, 11, 99, 0, 13), 0, 0) is None
    assert walks.find("other key", (10, 11, 12, 0, 13), 0, 0) is None


def test_a_walk_that_depended_on_the_frame_pointer():
    """Is that of no other; one that did not is that of any."""
    walks = Walks()
    walks.keep("depends", (10,), (0,), 5, frame_pointer=7)
    walks.keep("does not", (10,), (0,), 6)

    assert [walks.find("depends", (10,), fp, 0) for fp in (7, 8)] == [5, None]
    assert [walks.find("does not", (10,), fp, 0) for fp in (7, 8)] == [6, 6]


def test_a_shorter_stack_is_another_one():
    """A word that is not there any more is not the word that was read."""
    walks = Walks()
    walks.keep("key", (10, 11, 12), (2,), 5)

    assert walks.find("key", (10, 0, 11), 0, 0) is None


def test_several_walks_with_one_key():
    """
    Callers that leave the same registers are told apart by their words; of nine, the
    oldest is forgotten.
    """
    walks = Walks()
    for value in range(9):
        walks.keep("key", (value,), (0,), 100 + value)

    assert [walks.find("key", (value,), 0, 0) for value in range(9)] == [None, *range(101, 109)]
    assert walks._count == 8


def test_a_walk_that_read_nothing():
    """Where the registers alone decide, they do."""
    walks = Walks()
    walks.keep("key", (), (), 5)

    assert walks.find("key", (1, 2, 0, 3), 0, 0) == 5


def test_a_walk_may_have_an_end():
    """From then on it has to be done again."""
    walks = Walks()
    walks.keep("key", (10,), (0,), 5, ends_ktime_ns=1_000)

    assert walks.find("key", (10,), 0, 999) == 5
    assert walks.find("key", (10,), 0, 1_000) is None


def test_positions_outside_of_the_stack_are_not_believed():
    """A walk that claims to have read what is not there is not remembered."""
    walks = Walks()
    walks.keep("key", (10,), (1,), 5)
    walks.keep("key", (10,), (-1,), 5)

    assert walks._count == 0


def test_walks_not_used_for_longest_go_first():
    """With room for three, the one that was used stays."""
    walks = Walks(limit=3)
    for key in range(3):
        walks.keep(key, (1,), (0,), key + 1)
    walks.find(0, (1,), 0, 0)
    walks.keep(3, (1,), (0,), 4)

    assert [walks.find(key, (1,), 0, 0) for key in range(4)] == [1, None, 3, 4]
    assert walks._count == 3


def test_walks_go_with_their_owner():
    """Those of others stay."""
    walks = Walks(limit=3)
    for key in (("ended", 1), ("ended", 2), ("lives", 1)):
        walks.keep(key, (10,), (0,), 5)

    walks.forget({"ended"})

    assert walks._count == 1
    assert walks.find(("ended", 1), (10,), 0, 0) is None
    assert walks.find(("lives", 1), (10,), 0, 0) == 5
