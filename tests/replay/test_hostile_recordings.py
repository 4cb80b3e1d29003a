"""A recording from a stranger must not break a replay, whatever its records say."""

import gzip
import json
import logging
import os
import struct

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from otel_gpu import cli, wire
from otel_gpu.capture.recording import RecordingWriter
from otel_gpu.config import Config
from otel_gpu.wire.agent_records import MAX_SERIES_PER_RECORD, aggregates_record, json_record
from tests.replay.make_recordings import BEGIN_KTIME_NS, capture

U16, U32, U64 = (st.integers(0, (1 << bits) - 1) for bits in (16, 32, 64))
S32 = st.integers(-(1 << 31), (1 << 31) - 1)
# Values that meet each other often, next to any that fit.
PIDS = st.sampled_from([0, 1, 4242]) | U32
KTIMES = st.sampled_from([0, BEGIN_KTIME_NS, (1 << 63) - 1, (1 << 64) - 1]) | U64


@st.composite
def kernel_records(draw):
    kind, layout = draw(
        st.sampled_from(
            [
                (wire.RECORD_CUDA_CALL, wire.CUDA_CALL_RECORD),
                (wire.RECORD_STALL, wire.STALL_RECORD),
                (wire.RECORD_CPU_SAMPLE, wire.CPU_SAMPLE_RECORD),
                (wire.RECORD_FORK, wire.FORK_RECORD),
                (wire.RECORD_EXEC, wire.EXEC_RECORD),
                (wire.RECORD_EXIT, wire.EXIT_RECORD),
                (wire.RECORD_LIBRARY, wire.LIBRARY_RECORD),
                (wire.RECORD_DEVICE, wire.DEVICE_RECORD),
                (wire.RECORD_CLOCK, wire.CLOCK_RECORD),
                (wire.RECORD_COUNTERS, wire.COUNTERS_RECORD),
                (wire.RECORD_OPEN_CALL, wire.OPEN_CALL_RECORD),
            ]
        )
    )
    header = wire.RECORD_HEADER.pack(
        kind, draw(U16), layout.size, draw(KTIMES), draw(KTIMES), draw(PIDS), draw(PIDS)
    )
    length = layout.size - len(header)
    words = draw(st.lists(KTIMES, min_size=12, max_size=12))
    body = draw(st.binary(max_size=length)) + struct.pack("<12Q", *words) * 4
    return header + body[:length]


@st.composite
def aggregates_records(draw):
    series = []
    count = draw(st.integers(0, 5))
    assert count <= MAX_SERIES_PER_RECORD
    for _ in range(count):
        key = wire.AGGREGATE_KEY.pack(
            draw(KTIMES),
            draw(PIDS),
            draw(S32),
            draw(S32),
            draw(st.integers(0, 7)),
            draw(st.sampled_from([0, 1, 10, 17, 30, 110, 9999])),
            draw(st.sampled_from([0, 1, 4, 255, 77])),
            draw(st.integers(0, 255)),
        )
        buckets = draw(st.lists(U64, max_size=4))
        value = wire.AGGREGATE.pack(
            *(draw(U64) for _ in range(4)), *buckets, *[0] * (wire.MAX_BUCKETS - len(buckets))
        )
        series.append((key, value))
    return aggregates_record(draw(KTIMES), series)


TEXT = st.text(max_size=20)
NUMBERS = st.integers(-(1 << 63), (1 << 64) - 1)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OPTIONAL_TEXT = st.none() | TEXT
PROCESS_FACTS = st.fixed_dictionaries(
    {},
    optional={
        "start_boot_ns": st.none() | NUMBERS,
        "boot_offset_ns": st.none() | NUMBERS,
        "ppid": st.none() | NUMBERS,
        "vpid": st.none() | NUMBERS,
        "exe": OPTIONAL_TEXT,
        "command_args": st.lists(TEXT | st.sampled_from(["python", "-m", "-X"]), max_size=4),
        "comm": TEXT,
        "owner": OPTIONAL_TEXT,
        "cgroups": st.lists(TEXT | st.just("0::/docker/" + "a" * 64), max_size=2),
        "env": st.dictionaries(
            st.sampled_from(["OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "X"]), TEXT
        ),
        "otel_context": st.none() | st.dictionaries(TEXT, VALUES, max_size=3),
        "mountinfo_container_id": OPTIONAL_TEXT,
    },
)
PROBES = st.fixed_dictionaries(
    {"library": TEXT},
    optional={"symbols": NUMBERS, "exported": NUMBERS, "build_id": OPTIONAL_TEXT},
)
STATUSES = st.fixed_dictionaries(
    {},
    optional={
        "cpu_ns": NUMBERS,
        "rss_bytes": NUMBERS,
        "rejected": st.dictionaries(TEXT, NUMBERS, max_size=2),
        "dropped": st.dictionaries(TEXT, NUMBERS, max_size=2),
        "stacks": st.dictionaries(
            TEXT | st.sampled_from(["resolved", "incomplete", "unused"]), NUMBERS, max_size=3
        ),
    },
)
NAMES = TEXT | st.sampled_from(["take_gil", "/usr/lib/python3.11/queue.py", "libcuda.so.1", "\n;"])
USER_STACKS = st.fixed_dictionaries(
    {
        "stack": KTIMES,  # calls name one of these
        "complete": st.booleans(),
        "native": st.sampled_from(["eh_frame", "frame_pointer", "none"]),
        "python": st.sampled_from(["ok", "none", "no_thread", "cut", "broken"]),
        "frames": st.lists(
            st.tuples(
                st.sampled_from(["cpython", "native", "kernel", "cut", "other"]),
                *(NAMES, NAMES, st.integers(-1, 1 << 31), NAMES, U64),
            ),
            max_size=8,
        ),
    }
)
LAYOUTS = st.fixed_dictionaries(
    {
        "durations": st.fixed_dictionaries(
            {
                "kind": st.just("exponential"),
                "scale": st.integers(-10, 20),
                "offset": st.integers(-(1 << 27), (1 << 27) - 1),
            }
        ),
        "sizes": st.fixed_dictionaries(
            {
                "kind": st.just("explicit"),
                "bounds_bytes": st.lists(U64, unique=True, max_size=4).map(sorted),
            }
        ),
    }
)
CAPTURES = st.fixed_dictionaries(
    {"host": st.fixed_dictionaries({}, optional={"name": TEXT, "id": OPTIONAL_TEXT, "arch": TEXT})}
    | {"layout": LAYOUTS},
    optional={"agent": st.fixed_dictionaries({}, optional={"version": TEXT, "pid": NUMBERS})},
)
JSON_RECORDS = st.builds(
    lambda kind_and_body, ktime_ns, program_ktime_ns, pid: json_record(
        *kind_and_body[:1], ktime_ns, kind_and_body[1], pid=pid, program_ktime_ns=program_ktime_ns
    ),
    st.tuples(st.just(wire.RECORD_PROCESS), PROCESS_FACTS)
    | st.tuples(st.just(wire.RECORD_PROBES), PROBES | st.dictionaries(TEXT, VALUES, max_size=2))
    | st.tuples(st.just(wire.RECORD_STATUS), STATUSES)
    | st.tuples(st.just(wire.RECORD_USER_STACK), USER_STACKS)
    | st.tuples(st.just(wire.RECORD_CAPTURE), CAPTURES),
    KTIMES,
    KTIMES,
    PIDS,
)


class _Errors(logging.Handler):
    """What went wrong in a thread, or was caught and logged."""

    def __init__(self, level):
        super().__init__(level)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


RECORDS = st.lists(kernel_records() | aggregates_records() | JSON_RECORDS, max_size=12)


# Its process has the number and the beginning 0, which nothing of the agent may have.
OPEN_CALL_OF_NOBODY = wire.OPEN_CALL_RECORD.build(
    kind=wire.RECORD_OPEN_CALL, size=wire.OPEN_CALL_RECORD.size
)


def write(path, starts_well, records):
    with RecordingWriter(path) as writer:
        writer.write([capture(Config(), "all")] if starts_well else [])
        writer.write(records)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(starts_well=True, records=[OPEN_CALL_OF_NOBODY], stacks="event")
@given(
    starts_well=st.booleans(),
    records=RECORDS,
    stacks=st.sampled_from(["event", "attribute", "log", "none"]),
)
def test_no_record_breaks_a_replay(tmp_path_factory, starts_well, records, stacks):
    """Whatever numbers and names the records hold, a replay ends, and writes JSON."""
    folder = tmp_path_factory.getbasetemp()
    write(folder / "hostile", starts_well, records)
    assert not any(name.startswith("OTEL_EXPORTER") for name in os.environ)

    heard = _Errors(logging.ERROR)
    logging.getLogger().addHandler(heard)
    try:
        code = cli.main(
            [
                *("replay", str(folder / "hostile"), "--otlp-file", str(folder / "out")),
                *("--stacks", stacks),
            ]
        )
    finally:
        logging.getLogger().removeHandler(heard)

    assert code == 0
    assert heard.messages == []
    for line in (folder / "out").read_bytes().splitlines():
        assert json.loads(line).keys() <= {"resourceSpans", "resourceMetrics", "resourceLogs"}


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    RECORDS,
    st.sampled_from(
        [
            ["--json"],
            ["--folded", "--by", "bytes"],
            ["--waits"],
            ["--folded", "--by", "wall"],
            ["--json", "--by", "cpu", "--thread", "*"],
        ]
    ),
)
def test_no_record_breaks_a_list_of_stacks(tmp_path_factory, records, arguments):
    """Nor the adding up of its stacks, and what is drawn of them."""
    folder = tmp_path_factory.getbasetemp()
    write(folder / "hostile", True, records)
    shown = folder / "stacks"

    code = cli.main(
        [
            *("stacks", str(folder / "hostile"), "--output", str(shown), *arguments),
            *("--flamegraph", str(folder / "page"), "--speedscope", str(folder / "scope")),
            *("--pprof", str(folder / "pprof")),
        ]
    )

    text = shown.read_text(encoding="utf-8")
    assert {c for c in text if not c.isprintable()} <= {"\n"}
    # There may be nothing to draw.
    assert code in (0, 1)
    if code == 0:
        json.loads((folder / "scope").read_bytes())
        gzip.decompress((folder / "pprof").read_bytes())


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(RECORDS, RECORDS, st.sampled_from([["--json"], ["--folded"], []]))
def test_no_record_breaks_a_difference(tmp_path_factory, before, after, arguments):
    """Whichever of two recordings it is in."""
    folder = tmp_path_factory.getbasetemp()
    sides = [folder / name for name in ("before", "after")]
    for path, records in zip(sides, (before, after), strict=True):
        write(path, True, records)

    code = cli.main(
        [
            *("stacks", "--by", "wall", "--diff", *map(str, sides), *arguments),
            *("--output", str(folder / "shown"), "--flamegraph", str(folder / "page")),
        ]
    )

    assert code == 0
    text = (folder / "shown").read_text(encoding="utf-8")
    assert {c for c in text if not c.isprintable()} <= {"\n"}
