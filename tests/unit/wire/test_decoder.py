"""Records to events."""

import struct
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu import wire
from otel_gpu.wire.agent_records import (
    aggregates_record,
    clock_record,
    counters_record,
    json_record,
    open_call_record,
    step_record,
    times_record,
    unseen_exit_record,
)
from otel_gpu.wire.decoder import decode
from otel_gpu.wire.events import (
    Capture,
    Clock,
    CpuSample,
    CudaCall,
    Device,
    Exec,
    Exit,
    Fork,
    Gap,
    Library,
    OpenCall,
    Probes,
    Range,
    Stall,
    Step,
)
from otel_gpu.wire.frames import Frame
from otel_gpu.wire.readings import (
    Aggregate,
    Aggregates,
    Counters,
    Pressure,
    SeriesKey,
    Status,
    Times,
    TimesEntry,
    TimesKey,
)
from otel_gpu.wire.symbol_records import FunctionSeen, ProcessSeen, Stack, UserStack
from tests.synthetic import call_record, kernel_record, series, times_entry

LAYOUT = {
    "durations": {"kind": "exponential", "scale": 2, "offset": -120},
    "sizes": {"kind": "explicit", "bounds_bytes": [1, 2, 4]},
}

USER_STACK = {
    "stack": 0xFFFF_FFFF_FFFF_FFFF,
    "complete": False,
    "native": "frame_pointer",
    "python": "ok",
    "frames": [
        ["native", "at::empty", "", 0, "libtorch.so", 16],
        ["cpython", "main", "train.py", 74, "", 0],
    ],
}


def decode_one(record):
    rejected = Counter()
    [event] = decode([record], rejected)
    assert not rejected
    return event


def rejection_of(record):
    rejected = Counter()
    assert list(decode([record], rejected)) == []
    [(reason, count)] = rejected.items()
    assert count == 1
    return reason


def decode_partly(record):
    rejected = Counter()
    [event] = decode([record], rejected)
    return event, rejected


def test_every_field_of_a_call_arrives():
    """A call keeps all its fields, each in its place."""
    record = call_record(
        ktime_ns=1500,
        program_ktime_ns=7,
        pid=10,
        tid=11,
        start_ktime_ns=1000,
        parent_start_ktime_ns=900,
        root_start_ktime_ns=800,
        blocked_ns=12,
        run_queue_ns=13,
        size_bytes=14,
        address=0xFFFF_FFFF_FFFF_FFFF,
        stream=16,
        function=17,
        user_stack=0xFFFF_FFFF_FFFF_FFFE,
        status=-3,
        device=-1,
        weight=1000,
        voluntary_switches=19,
        involuntary_switches=20,
        cpu=21,
        grid=(1, 2, 3),
        block=(4, 5, 6),
        api=30,
        variant=2,
        copy_kind=255,
        choices=5,
        depth=7,
        comm="python3",
    )

    assert decode_one(record) == CudaCall(
        end_ktime_ns=1500,
        program_ktime_ns=7,
        pid=10,
        tid=11,
        start_ktime_ns=1000,
        parent_start_ktime_ns=900,
        root_start_ktime_ns=800,
        blocked_ns=12,
        run_queue_ns=13,
        size_bytes=14,
        address=0xFFFF_FFFF_FFFF_FFFF,
        stream=16,
        function=17,
        user_stack=0xFFFF_FFFF_FFFF_FFFE,
        status=-3,
        device=-1,
        weight=1000,
        voluntary_switches=19,
        involuntary_switches=20,
        cpu=21,
        grid=(1, 2, 3),
        block=(4, 5, 6),
        api=30,
        variant=2,
        copy_kind=255,
        choices=5,
        depth=7,
        comm="python3",
    )


def test_every_field_of_a_stall_arrives():
    """A stall keeps all its fields, and its three names apart."""
    record = kernel_record(
        wire.RECORD_STALL,
        ktime_ns=1500,
        program_ktime_ns=7,
        pid=10,
        tid=11,
        start_ktime_ns=1,
        runnable_ktime_ns=2,
        call_start_ktime_ns=3,
        root_start_ktime_ns=4,
        user_stack=7,
        culprit_pid=5,
        culprit_tid=6,
        waker_pid=8,
        waker_tid=9,
        cpu=12,
        call_api=13,
        call_depth=14,
        switch_type=2,
        kernel_stack=-14,
        system_call=202,
        argument=0xFFFF_FFFF_FFFF_FFFF,
        flags=5,
        comm="me",
        culprit_comm="hog",
        waker_comm="friend",
    )

    assert decode_one(record) == Stall(
        *(1500, 7, 10, 11, 1, 2, 3, 4, 7, 5, 6, 8, 9, 12, 13, 14, 2),
        *(-14, 202, 0xFFFF_FFFF_FFFF_FFFF, 5),
        *("me", "hog", "friend"),
    )


@pytest.mark.parametrize(
    ("record", "event"),
    [
        pytest.param(
            kernel_record(
                wire.RECORD_GAP,
                ktime_ns=20,
                program_ktime_ns=2,
                pid=3,
                tid=4,
                start_ktime_ns=5,
                blocked_ns=6,
                run_queue_ns=7,
                device=-1,
                voluntary_switches=8,
                involuntary_switches=9,
                previous_api=10,
                next_api=11,
                choices=12,
                comm="feeder",
            ),
            Gap(20, 2, 3, 4, 5, 6, 7, -1, 8, 9, 10, 11, 12, "feeder"),
            id="gap",
        ),
        pytest.param(
            kernel_record(
                wire.RECORD_STEP,
                ktime_ns=20,
                program_ktime_ns=2,
                pid=3,
                tid=4,
                start_ktime_ns=5,
                number=1 << 63,
                loader_wait_ns=6,
                trace_id=b"T" * 16,
                span_id=b"S" * 8,
                trace_flags=1,
                source=wire.STEP_REPORTED,
                confidence_percent=200,
                step_kind=wire.STEP_TRAINING,
                name="train\0left",
                comm="loop",
            ),
            Step(
                *(20, 2, 3, 4, 5, (1 << 63) - 1, 6, b"T" * 16, b"S" * 8, 1),
                *(wire.STEP_REPORTED, 100, wire.STEP_TRAINING, "train", "loop"),
            ),
            id="step that the program tells",
        ),
        pytest.param(
            step_record(
                *(20,),
                program_ktime_ns=2,
                pid=3,
                tid=4,
                start_ktime_ns=5,
                number=6,
                confidence_percent=90,
                step_kind=wire.STEP_DECODE,
                name=b"n" * 40,
            ),
            Step(20, 2, 3, 4, 5, 6, 0, b"", b"", 0, wire.STEP_FOUND, 90, 4, "n" * 31, ""),
            id="step that was found",
        ),
        pytest.param(
            kernel_record(
                wire.RECORD_RANGE,
                ktime_ns=20,
                program_ktime_ns=2,
                pid=3,
                tid=4,
                start_ktime_ns=5,
                trace_id=b"T" * 16,
                span_id=b"S" * 8,
                start_tid=6,
                trace_flags=1,
                range_kind=wire.RANGE_STARTED,
                name="forward",
                domain="solver",
                comm="loop",
            ),
            Range(
                *(20, 2, 3, 4, 5, b"T" * 16, b"S" * 8, b"", 6, 1, wire.RANGE_STARTED),
                *("forward", "solver", "loop"),
            ),
            id="range in nothing",
        ),
        pytest.param(
            kernel_record(
                wire.RECORD_CPU_SAMPLE,
                ktime_ns=20,
                program_ktime_ns=2,
                pid=3,
                tid=4,
                user_stack=5,
                weight_ns=10_101_010,
                root_start_ktime_ns=6,
                kernel_stack=-1,
                cpu=7,
                api=8,
                context=wire.CONTEXT_CALL,
                comm="worker",
            ),
            CpuSample(20, 2, 3, 4, 5, 10_101_010, 6, -1, 7, 8, wire.CONTEXT_CALL, "worker"),
            id="cpu-sample",
        ),
        pytest.param(
            json_record(
                wire.RECORD_STACK, 5, {"kernel_stack": 9, "functions": ["schedule", "do_wait"]}
            ),
            Stack(5, 9, ("schedule", "do_wait")),
            id="stack",
        ),
        pytest.param(
            json_record(wire.RECORD_USER_STACK, 5, USER_STACK),
            UserStack(
                5,
                0xFFFF_FFFF_FFFF_FFFF,
                (
                    Frame("native", "at::empty", module="libtorch.so", address=0x10),
                    Frame("cpython", "main", "train.py", 74),
                ),
                complete=False,
                native="frame_pointer",
                python="ok",
            ),
            id="user stack",
        ),
        pytest.param(
            json_record(wire.RECORD_USER_STACK, 5, USER_STACK | {"frames": []}),
            UserStack(5, 0xFFFF_FFFF_FFFF_FFFF, (), False, "frame_pointer", "ok"),
            id="user stack without frames",
        ),
        pytest.param(
            json_record(
                wire.RECORD_FUNCTION,
                5,
                {"function": 0xFFFF_FFFF_FFFF_FFFF, "name": "add<float>"},
                pid=7,
                program_ktime_ns=3,
            ),
            FunctionSeen(5, 3, 7, 0xFFFF_FFFF_FFFF_FFFF, "add<float>"),
            id="kernel of a launch",
        ),
        pytest.param(
            json_record(wire.RECORD_PRESSURE, 5, {"load1": 0.5, "psi": {"cpu": {"x": 1}}}),
            Pressure(5, {"load1": 0.5, "psi": {"cpu": {"x": 1}}}),
            id="pressure",
        ),
        pytest.param(
            kernel_record(
                wire.RECORD_FORK,
                ktime_ns=1,
                program_ktime_ns=2,
                pid=3,
                tid=4,
                start_ktime_ns=5,
                child_program_ktime_ns=6,
                call_start_ktime_ns=7,
                root_start_ktime_ns=8,
                child_pid=9,
                comm="parent",
            ),
            Fork(1, 2, 3, 4, 5, 6, 7, 8, 9, "parent"),
            id="fork",
        ),
        pytest.param(
            kernel_record(
                wire.RECORD_EXEC,
                ktime_ns=1,
                program_ktime_ns=2,
                pid=3,
                tid=4,
                old_program_ktime_ns=5,
                inode=6,
                device=7,
                stopped=1,
                comm="new",
                path="/bin/new",
            ),
            Exec(1, 2, 3, 4, 5, 6, 7, 1, "new", "/bin/new"),
            id="exec",
        ),
        pytest.param(
            kernel_record(
                wire.RECORD_EXIT,
                ktime_ns=1,
                program_ktime_ns=2,
                pid=3,
                tid=4,
                start_boot_ns=5,
                exit_code=256,
                comm="gone",
            ),
            Exit(1, 2, 3, 4, 5, 256, "gone"),
            id="exit",
        ),
        pytest.param(
            unseen_exit_record(9, pid=5, program_ktime_ns=7),
            Exit(9, 7, 5, 5, 0, None, ""),
            id="exit-not-seen",
        ),
        pytest.param(
            kernel_record(
                wire.RECORD_LIBRARY,
                ktime_ns=1,
                program_ktime_ns=2,
                pid=3,
                tid=4,
                stopped=1,
                path="/usr/lib/libcuda.so.1",
            ),
            Library(1, 2, 3, 4, 1, "/usr/lib/libcuda.so.1"),
            id="library",
        ),
        pytest.param(
            kernel_record(
                wire.RECORD_DEVICE,
                ktime_ns=1,
                program_ktime_ns=2,
                pid=3,
                tid=4,
                device=-1,
                has_name=1,
                uuid=bytes(range(16)),
                name="NVIDIA H100",
            ),
            Device(1, 2, 3, 4, -1, bytes(range(16)), "NVIDIA H100"),
            id="device",
        ),
        pytest.param(
            kernel_record(wire.RECORD_DEVICE, uuid=bytes(16), name="left over"),
            Device(0, 0, 0, 0, 0, bytes(16), ""),
            id="device without a name",
        ),
        pytest.param(clock_record(5, 6), Clock(5, 6), id="clock"),
        pytest.param(
            counters_record(5, range(wire.COUNTER_COUNT)),
            Counters(5, tuple(range(wire.COUNTER_COUNT))),
            id="counters",
        ),
        pytest.param(
            open_call_record(
                50,
                program_ktime_ns=7,
                pid=10,
                tid=11,
                start_ktime_ns=20,
                root_start_ktime_ns=15,
                blocked_ns=3,
                run_queue_ns=4,
                device=-1,
                api=6,
                depth=1,
                comm=b"hung",
            ),
            OpenCall(50, 7, 10, 11, 20, 15, 3, 4, 0, -1, 6, 1, "hung"),
            id="open call",
        ),
        pytest.param(
            json_record(wire.RECORD_CAPTURE, 5, {"host": {}, "layout": LAYOUT}),
            Capture(5, {"host": {}, "layout": LAYOUT}),
            id="capture",
        ),
        pytest.param(
            json_record(wire.RECORD_PROCESS, 5, {"comm": "é"}, pid=6, program_ktime_ns=7),
            ProcessSeen(5, 7, 6, {"comm": "é"}),
            id="process",
        ),
        pytest.param(
            json_record(wire.RECORD_PROBES, 5, {"library": "/a", "symbols": 3}),
            Probes(5, {"library": "/a", "symbols": 3}),
            id="probes",
        ),
        pytest.param(
            json_record(wire.RECORD_STATUS, 5, {"cpu_ns": 8, "rejected": {"short": 1}}),
            Status(5, {"cpu_ns": 8, "rejected": {"short": 1}}),
            id="status",
        ),
    ],
)
def test_a_record_of_every_other_kind_becomes_its_event(record, event):
    """Each kind of record gives the event that bears its name, with all its fields."""
    decoded = decode_one(record)

    assert decoded == event
    assert type(decoded) is type(event)


def test_the_minimum_of_a_series_is_the_complement_of_what_the_map_holds():
    """The map keeps ~min; zeroed memory there is no minimum, and reads as 0."""
    pairs = [
        series(
            program_ktime_ns=7,
            pid=10,
            metric=wire.METRIC_CALL_DURATION,
            api=30,
            device=1,
            status=2,
            copy_kind=3,
            nested=1,
            buckets={0: 2, 191: 1},
            sum=30,
            min=5,
            max=20,
            size_bytes=4096,
        ),
        (wire.AGGREGATE_KEY.pack(8, 11, 0, -1, 6, 0, 255, 0), b"\0" * 32 + b"\x09" + b"\0" * 1535),
    ]

    assert decode_one(aggregates_record(5, pairs)) == Aggregates(
        5,
        (
            (SeriesKey(7, 10, 2, 1, 1, 30, 3, 1), Aggregate(30, 5, 20, 4096, (2, *[0] * 190, 1))),
            (SeriesKey(8, 11, 0, -1, 6, 0, 255, 0), Aggregate(0, 0, 0, 0, (9, *[0] * 191))),
        ),
    )


def test_the_time_account_arrives_entry_by_entry():
    """Each entry is a key with all its fields, a time and a count."""
    entries = [
        times_entry(
            program_ktime_ns=1,
            pid=2,
            kernel_stack=3,
            system_call=4,
            state=5,
            context=6,
            flags=7,
            **dict(zip(TimesKey._fields[7:], range(8, 19), strict=True)),
            time_ns=LARGEST,
            count=LARGEST,
            who_comm="who",
            end_comm="end",
        ),
        times_entry(program_ktime_ns=8, pid=9, state=0, context=0, time_ns=0, count=0),
    ]

    assert decode_one(times_record(5, entries)) == Times(
        5,
        (
            TimesEntry(TimesKey(*range(1, 19)), LARGEST, LARGEST, LARGEST, "who", "end"),
            TimesEntry(TimesKey(8, 9, -1, -1, 0, 0, 0), 0, 0),
        ),
    )
    assert decode_one(times_record(5, [])) == Times(5, ())


def test_entries_of_the_first_wire_version_are_read():
    """They said neither who nor what had not ended: time was booked at the end."""
    old = struct.pack("<QIiiBBBxQQ", 1, 2, 3, 4, 5, 6, 7, 30, 4)

    assert decode_one(times_record(5, [(old, b""), (old, b"")])) == Times(
        5, 2 * (TimesEntry(TimesKey(1, 2, 3, 4, 5, 6, 7), 30, 4, 30),)
    )


@pytest.mark.parametrize(
    "excess", [{"time_ns": 1 << 63}, {"count": 1 << 63}, {"ended_ns": 1 << 63}]
)
def test_time_that_no_exporter_can_send_is_rejected(excess):
    """The account is summed and sent as signed 64-bit numbers."""
    good = {"program_ktime_ns": 1, "pid": 2, "state": 0, "context": 0, "time_ns": 1, "count": 1}

    bad = times_entry(**(good | excess))
    assert rejection_of(times_record(5, [bad])) == "bad_body"
    times, rejected = decode_partly(times_record(5, [times_entry(**good), bad, bad]))
    assert (len(times.entries), rejected) == (1, {"bad_body": 2})


LARGEST = (1 << 63) - 1


@pytest.mark.parametrize(
    "excess",
    [
        {"sum": LARGEST + 1},
        {"max": LARGEST + 1},
        {"size_bytes": LARGEST + 1},
        {"buckets": {0: 1 << 56}},
        {"buckets": {191: 1 << 63}},
    ],
)
def test_counts_that_no_exporter_can_send_are_rejected(excess):
    """One absurd series, which only a forged recording holds, does not spoil the metrics."""
    good = {
        "program_ktime_ns": 7,
        "pid": 10,
        "metric": 1,
        "buckets": {0: (1 << 56) - 1, 191: (1 << 56) - 1},
        "sum": LARGEST,
        "min": 0,
        "max": LARGEST,
        "size_bytes": LARGEST,
        "status": -1,
    }

    assert len(decode_one(aggregates_record(5, [series(**good)])).series) == 1
    bad = series(**(good | excess))
    assert rejection_of(aggregates_record(5, [bad])) == "bad_body"
    aggregates, rejected = decode_partly(aggregates_record(5, [bad, series(**good)]))
    assert (len(aggregates.series), rejected) == (1, {"bad_body": 1})


@pytest.mark.parametrize("count", [1, 24, wire.COUNTER_COUNT + 3])
def test_counters_of_another_version_are_as_many_as_there_are(count):
    """A recording made before a counter was added is read, and so is one made after."""
    size = wire.RECORD_HEADER.size + 8 * count
    header = wire.RECORD_HEADER.pack(wire.RECORD_COUNTERS, 0, size, 5, 0, 0, 0)
    record = header + b"".join(value.to_bytes(8, "little") for value in range(count))

    assert list(decode([record], Counter())) == [Counters(5, tuple(range(count)))]


def test_counters_that_no_exporter_can_send_are_rejected():
    """Counters fit a signed 64-bit number."""
    count = wire.COUNTER_COUNT
    good = counters_record(5, [LARGEST] * count)
    bad = counters_record(5, [0] * (count - 1) + [LARGEST + 1])

    assert decode_one(good).values == (LARGEST,) * count
    assert rejection_of(bad) == "bad_body"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", ""),
        (b"python3", "python3"),
        (b"a\0leftover", "a"),
        (b"fifteen-bytes-xx", "fifteen-bytes-xx"),
        (b"caf\xc3\xa9", "café"),
        (b"bad\xff", "bad\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_a_name_ends_at_its_nul_and_is_always_text(raw, text):
    """What a program wrote after the NUL is not shown, and bad bytes are replaced."""
    assert decode_one(call_record(comm=raw)).comm == text


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"", "short"),
        (b"\x01" * 31, "short"),
        (call_record()[:-1], "size_mismatch"),
        (call_record() + b"\0", "size_mismatch"),
        (call_record(size=175), "size_mismatch"),
        (wire.RECORD_HEADER.pack(wire.RECORD_CUDA_CALL, 0, 32, 0, 0, 0, 0), "size_mismatch"),
        (wire.RECORD_HEADER.pack(wire.RECORD_STALL, 0, 32, 0, 0, 0, 0), "size_mismatch"),
        (wire.RECORD_HEADER.pack(wire.RECORD_AGGREGATES, 0, 32, 0, 0, 0, 0), "size_mismatch"),
        (
            wire.AGGREGATES_RECORD.pack(wire.RECORD_AGGREGATES, 0, 40, 0, 0, 0, 0, 0xFFFFFFFF),
            "size_mismatch",
        ),
        (wire.RECORD_HEADER.pack(wire.RECORD_TIMES, 0, 32, 0, 0, 0, 0), "size_mismatch"),
        (times_record(0, [(b"", b"\0" * 40)])[:-1], "size_mismatch"),
        (
            wire.TIMES_RECORD.pack(wire.RECORD_TIMES, 0, 40, 0, 0, 0, 0, 1),
            "size_mismatch",
        ),
        (json_record(wire.RECORD_STACK, 0, {"kernel_stack": 1}), "bad_body"),
        (json_record(wire.RECORD_STACK, 0, {"kernel_stack": 1, "functions": [1]}), "bad_body"),
        (json_record(wire.RECORD_PRESSURE, 0, {"cpus": "many"}), "bad_body"),
        (wire.RECORD_HEADER.pack(999, 0, 32, 0, 0, 0, 0), "unknown_kind"),
        (wire.RECORD_HEADER.pack(wire.RECORD_STATUS, 0, 32, 0, 0, 0, 0), "bad_json"),
        (wire.RECORD_HEADER.pack(wire.RECORD_STATUS, 0, 35, 0, 0, 0, 0) + b"[1]", "bad_body"),
    ],
)
def test_what_is_wrong_with_a_record_is_its_reason(record, reason):
    """A record that cannot be understood is counted under what is wrong with it."""
    assert rejection_of(record) == reason


def test_a_record_of_another_kind_may_be_as_long_as_a_call():
    """Only the kind makes a record a call, not its length."""
    body = {"library": "x" * (wire.CUDA_CALL_RECORD.size - 32 - len('{"library":""}'))}
    record = json_record(wire.RECORD_PROBES, 5, body)
    assert len(record) == wire.CUDA_CALL_RECORD.size

    assert decode_one(record) == Probes(5, body)


def test_a_rejected_record_does_not_stop_the_stream():
    """The records around one that is rejected arrive, in order."""
    rejected = Counter()

    events = list(decode([clock_record(1, 2), b"?", clock_record(3, 4)], rejected))

    assert events == [Clock(1, 2), Clock(3, 4)]
    assert rejected == {"short": 1}


KINDS = st.sampled_from([*wire.RECORD_KIND_NAMES, 0, 99])


@st.composite
def plausible_records(draw):
    """Bytes with a header that is right, more often than chance would make it."""
    body = draw(st.binary(max_size=2000))
    size = wire.RECORD_HEADER.size + len(body) + draw(st.sampled_from([0, 0, 0, 1]))
    return wire.RECORD_HEADER.pack(draw(KINDS), 0, size, 1, 2, 3, 4) + body


@given(st.lists(st.binary(max_size=400) | plausible_records()))
def test_no_record_stops_the_stream(records):
    """Whatever bytes arrive, each is either decoded or counted as rejected."""
    rejected = Counter()

    decoded = list(decode(records, rejected))

    assert len(decoded) + rejected.total() == len(records)


@given(st.binary(min_size=140, max_size=140), KINDS.filter(lambda kind: kind < 256))
def test_kernel_records_hold_any_bytes(body, kind):
    """Every value that fits a field of a kernel record decodes, and its text is text."""
    known = (
        *range(1, 9),
        wire.RECORD_CPU_SAMPLE,
        wire.RECORD_BLOCK_STACK,
        wire.RECORD_OUT_OF_MEMORY,
        wire.RECORD_THREAD_CONTEXT,
        wire.RECORD_STEP,
        wire.RECORD_RANGE,
    )
    size = len(kernel_record(kind)) if kind in known else 172
    record = wire.RECORD_HEADER.pack(kind, 0, size, 1, 2, 3, 4) + (body * 5)[: size - 32]
    rejected = Counter()

    for event in decode([record], rejected):
        for value in event:
            if isinstance(value, str):
                assert "\0" not in value
                assert value.encode().decode() == value

    assert rejected.keys() <= {"unknown_kind"}
