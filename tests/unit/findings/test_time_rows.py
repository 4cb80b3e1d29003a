"""The time tree in words."""

import pytest

from otel_gpu.enrich.activities import Resource, Who
from otel_gpu.findings.document import Node, Where
from otel_gpu.findings.sentences import plain
from otel_gpu.findings.time_rows import time_rows

FEED = Who(77, 79, "python", function="_feed")
WORKER = Who(77, 77, "python")
HOG = Who(900, 0, "stress", unit="noise.service")
FAR = Resource("tcp", "198.18.77.2:9000", is_remote=True)
FILE = Resource("file", "/mnt/a.parquet", "nfs4", "/mnt", is_remote=True, source="nas:/data")
HERE = Where("get_batch", "/app/train.py", 40)


def node(state, share, *children, **values):
    return Node(state, round(share * 1e9), share, children=children, **values)


def told(*children):
    tree = node("all", 1.0, *children)
    return [(row.depth, row.tone, plain(row.sentence)) for row in time_rows(tree)]


def test_a_row_says_who_was_waited_for_and_what_that_one_did():
    """The place is said once, and of each thread its own."""
    work = node("host_work", 0.7, who=WORKER, where=Where("decode", "/app/data.py", 7))
    late = node("run_queue", 0.1, who=FEED)
    loader = node("ipc", 0.8, work, late, who=FEED, where=HERE)

    assert told(node("ipc", 0.8, loader, where=HERE), node("gpu_wait", 0.2)) == [
        (0, "data", "data from others, in train.py:40 get_batch"),
        (1, "data", "for python (77/79), in _feed"),
        (2, "work", "python (77), which was working on a CPU, in data.py:7 decode"),
        (2, "cpu", "which waited for a CPU"),
        (0, "gpu", "waiting for the GPU"),
    ]


@pytest.mark.parametrize(
    ("state", "child", "words"),
    [
        ("run_queue", {"who": HOG}, "stress (900), noise.service had the CPU"),
        ("run_queue", {}, "no other thread had the CPU"),
        ("lock", {}, "for whom is not known"),
        ("io", {"resource": FILE}, "for /mnt/a.parquet (nfs4 of nas:/data)"),
        ("io", {"resource": Resource("pipe", "")}, "waited for a disk"),
        ("idle", {}, "for input from outside of what is watched"),
    ],
)
def test_a_row_says_what_was_waited_for(state, child, words):
    """A process that is not watched is named by what an operator would look for."""
    kind = "ipc" if state == "idle" else state
    assert told(node(state, 0.5, node(kind, 0.5, **child)))[1][2] == words


def test_another_host_is_said_with_its_address():
    """Whether the program waits for it itself, or the loader that it waits for does."""
    behind = node("network", 0.5, who=WORKER, resource=FAR)
    own = node("network", 0.4, resource=FAR)

    rows = told(node("ipc", 0.9, node("ipc", 0.5, behind, who=WORKER), own))

    assert rows[2][2] == "which waited for another host: 198.18.77.2:9000"
    assert rows[3][2] == "for 198.18.77.2:9000"


def test_what_is_not_known_has_its_reason():
    """It is a row like others."""
    unknown = node("unknown", 0.3, note="These waits had not ended.")
    rest = node("other", 0.2, note="12 smaller ones.")

    assert [words for _, _, words in told(node("lock", 0.5, unknown, rest))[1:]] == [
        "not known: these waits had not ended.",
        "others: 12 smaller ones.",
    ]


def test_what_is_next_to_nothing_is_left_out():
    """And what is below it; a process without an account has no rows."""
    assert told(node("lock", 0.004, node("lock", 0.004, who=WORKER)), node("host", 0.9)) == [
        (0, "work", "its own work")
    ]
    assert list(time_rows(None)) == []


def test_nothing_in_a_name_is_obeyed():
    """A thread may be called anything."""
    evil = node("run_queue", 0.5, who=Who(5, 5, "\x1b[31m", unit="\x07"))

    (_, (_, _, words)) = told(node("run_queue", 0.5, evil))
    assert words.isprintable()
