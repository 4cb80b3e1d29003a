"""The time tree in words."""

import pytest

from otel_gpu.enrich.identity.identities import Resource, Who
from otel_gpu.report.document import TimeNode, Where
from otel_gpu.report.time_tree import largest_leaves, time_rows
from otel_gpu.report.wording.sentences import plain

FEED = Who(77, 79, "python", function="_feed")
WORKER = Who(77, 77, "python")
HOG = Who(900, 0, "stress", unit="noise.service")
FAR = Resource("tcp", "198.18.77.2:9000", is_remote=True)
FILE = Resource("file", "/mnt/a.parquet", "nfs4", "/mnt", is_remote=True, source="nas:/data")
HERE = Where("get_batch", "/app/train.py", 40)


def node(state, share, *children, **values):
    return TimeNode(state, round(share * 1e9), share, children=children, **values)


def told(*children):
    tree = node("all", 1.0, *children)
    return [(row.depth, row.tone, plain(row.sentence)) for row in time_rows(tree)]


def test_a_row_says_who_was_waited_for_and_what_that_one_did():
    """The place is said once, and of each thread its own."""
    work = node("host_work", 0.7, who=WORKER, where=Where("decode", "/app/data.py", 7), samples=9)
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


def lines(share, *counts, samples=43, lost=0.0):
    """Work in some lines: function, line number, and share of the work."""
    below = [
        node("line", share * part, where=Where(name, "/app/data.py", line), samples=1)
        for name, line, part in counts
    ]
    if lost:
        below.append(node("other", share * lost, note="3 smaller ones."))
    where = below[0].where
    return {"where": where, "samples": samples, "children": tuple(below)}


def test_work_has_a_row_for_each_of_its_lines():
    """With its share of the samples, where there is more than one."""
    work = TimeNode(
        "host_work",
        700_000_000,
        0.7,
        WORKER,
        **lines(0.7, ("decode", 7, 0.9), ("f", 9, 0.05), lost=0.05),
    )
    own = TimeNode("host", 200_000_000, 0.2, **lines(0.2, ("step", 3, 1.0), samples=1))

    assert told(node("ipc", 0.7, node("ipc", 0.7, work, who=FEED)), own)[2:] == [
        (2, "work", "python (77), which was working on a CPU: 43 samples"),
        (3, "work", "in data.py:7 decode: 90 % of 43 samples"),
        (3, "work", "in data.py:9 f: 5 % of 43 samples"),
        (3, "other", "others: 3 smaller ones."),
        (0, "work", "its own work, in data.py:3 step: 100 % of 1 sample"),
    ]


def test_what_work_is_known_to_be_is_said():
    """By the frames between the line and the end of the stack."""
    below = lines(0.6, ("slow_augment", 88, 1.0))
    (line,) = below["children"]
    own = TimeNode("host", 600_000_000, 0.6, **below | {"children": (line._replace(work="gc"),)})

    assert told(own)[0][2] == "its own work, in data.py:88 slow_augment (gc): 100 % of 43 samples"


def test_work_without_a_sample_says_so():
    """Its place is the next best; that of a wait needs none."""
    rows = told(node("host", 0.5, where=HERE), node("io", 0.5, where=HERE))

    assert [words for _, _, words in rows] == [
        "its own work, in train.py:40 get_batch (no sample)",
        "disks, in train.py:40 get_batch",
    ]


def test_somebodys_work_is_one_leaf_with_its_first_line():
    """Where there is little room, the line with most says enough."""
    work = TimeNode(
        "host_work", 700_000_000, 0.7, WORKER, **lines(0.7, ("decode", 7, 0.9), ("f", 9, 0.1))
    )
    tree = node(
        "all", 1.0, node("ipc", 0.7, node("ipc", 0.7, work, who=FEED)), node("gpu_wait", 0.3)
    )

    first, _ = largest_leaves(tree, 3)

    assert plain(first[-1].sentence) == (
        "python (77), which was working on a CPU, in data.py:7 decode: 90 % of 43 samples"
    )
    assert len(first) == 3
