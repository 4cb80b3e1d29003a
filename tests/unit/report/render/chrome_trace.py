"""What the Trace Event Format asks of a file, as far as otel_gpu writes it."""

from bisect import bisect_right
from collections import defaultdict
from itertools import accumulate

REQUIRED = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid"},
    "i": {"name", "cat", "ph", "ts", "pid", "tid", "s"},
    "C": {"name", "ph", "ts", "pid", "args"},
    "s": {"name", "cat", "ph", "ts", "pid", "tid", "id"},
    "f": {"name", "cat", "ph", "ts", "pid", "tid", "id", "bp"},
    "M": {"name", "ph", "pid", "args"},
}
METADATA = {"process_name": "name", "thread_name": "name", "thread_sort_index": "sort_index"}


def check(document):
    """Fail with the first thing that a reader of the format would not take as it was meant."""
    events = document["traceEvents"]
    slices, arrows = defaultdict(list), defaultdict(dict)
    named = {"process_name": set(), "thread_name": set()}
    for event in events:
        phase = event["ph"]
        missing = REQUIRED[phase] - event.keys()
        assert not missing, (event, missing)
        for number in ("pid", "tid"):
            assert type(event.get(number, 0)) is int, event
            assert event.get(number, 0) in range(1 << 32), event
        if phase == "M":
            assert METADATA[event["name"]] in event["args"], event
            if event["name"] in named:
                key = (
                    event["pid"]
                    if event["name"] == "process_name"
                    else (event["pid"], event["tid"])
                )
                assert key not in named[event["name"]], f"named twice: {event}"
                named[event["name"]].add(key)
            continue
        assert event["ts"] >= 0, event
        if phase == "X":
            assert event["dur"] >= 0, event
            start = round(event["ts"] * 1_000)
            slices[event["pid"], event["tid"]].append((start, -round(event["dur"] * 1_000)))
        elif phase == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values()), event
        elif phase == "i":
            assert event["s"] in "gpt", event
        else:
            assert phase not in arrows[event["id"]], f"used twice: {event}"
            arrows[event["id"]][phase] = event
    _check_nesting(slices)
    _check_arrows(slices, arrows)
    used = {key[0] for key in slices} | {e["pid"] for e in events if e["ph"] in "iC"}
    assert used <= named["process_name"]
    assert slices.keys() <= named["thread_name"]
    return events


def _check_nesting(slices):
    for key, found in slices.items():
        open_ends = []
        for start, minus_duration in sorted(found):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            end = start - minus_duration
            assert not open_ends or end <= open_ends[-1], f"{key}: {start} to {end} across another"
            open_ends.append(end)


def _check_arrows(slices, arrows):
    # By row: when slices begin, and until when any of those up to there last.
    reaches = {}
    for key, found in slices.items():
        starts = sorted(found)
        ends = accumulate((start - minus for start, minus in starts), max)
        reaches[key] = ([start for start, _ in starts], list(ends))
    for number, ends in arrows.items():
        assert ends.keys() == {"s", "f"}, f"arrow {number} has one end"
        assert ends["s"]["ts"] <= ends["f"]["ts"], f"arrow {number} leads back in time"
        for event in ends.values():
            at = round(event["ts"] * 1_000)
            starts, reached = reaches[event["pid"], event["tid"]]
            begun = bisect_right(starts, at)
            assert begun, event
            assert reached[begun - 1] >= at, event
