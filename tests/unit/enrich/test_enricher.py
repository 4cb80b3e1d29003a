import typing
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from otel_gpu import wire
from otel_gpu.enrich.activities import (
    AggregatesActivity,
    CallActivity,
    CaptureActivity,
    ContextActivity,
    CountersActivity,
    ExitActivity,
    ForkActivity,
    GapActivity,
    OpenCallActivity,
    OutOfMemoryActivity,
    PressureActivity,
    ProbesActivity,
    StallActivity,
    StatusActivity,
    TimesActivity,
)
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.enrich.identity import processes
from otel_gpu.enrich.identity.identities import CallStack, DeviceIdentity
from otel_gpu.enrich.ids import SpanIds, capture_seed
from otel_gpu.enrich.marks import StepActivity
from otel_gpu.enrich.pending_events import MAX_HELD
from otel_gpu.enrich.thread_times import ThreadTime
from otel_gpu.enrich.waits.reasons import WaitReason
from otel_gpu.faults import Faults
from otel_gpu.wire.blocks import DeviceKey, Holder, HolderKey, MemoryMap, MemoryTotals, OutOfMemory
from otel_gpu.wire.communicators import Communicator, CommunicatorKey, QueuedCollective, Signature
from otel_gpu.wire.device_faults import DeviceFault
from otel_gpu.wire.events import (
    Capture,
    Clock,
    CpuSample,
    CudaCall,
    Device,
    Event,
    Exec,
    Exit,
    Fork,
    Gap,
    OpenCall,
    Probes,
    Range,
    Stall,
    Step,
)
from otel_gpu.wire.frames import Frame
from otel_gpu.wire.probe_table import API_BY_NUMBER
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
from otel_gpu.wire.symbol_records import ProcessSeen, Stack, UserStack

T0 = 1_700_000_000_000_000_000
UUID = bytes.fromhex("0f1e2d3c4b5a69788796a5b4c3d2e1f0")
H100 = DeviceIdentity(0, "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", "H100")
CAPTURE = Capture(10, {"host": {"name": "node1", "boot_id": "b"}, "layout": {}})
CLOCK = Clock(20, T0 + 20)
SEEN = ProcessSeen(
    30, 5, 42, {"exe": "/usr/bin/python3", "command_args": ["python", "t.py"], "comm": "python"}
)
DEVICE = Device(40, 5, 42, 43, 0, UUID, "H100")
AGGREGATE = Aggregate(100, 10, 50, 0, (1, 2, 3))
FRAMES = (
    Frame("native", "cudaMalloc", module="libcudart.so.12"),
    Frame("cpython", "pattern", "/app/train.py", 74),
)
GET_FRAMES = (
    Frame("native", "pthread_cond_timedwait", module="libc.so.6"),
    Frame("cpython", "Queue.get", "/usr/lib/python3.11/queue.py", 180),
    Frame("cpython", "step", "/app/train.py", 40),
)


def cuda_call(**fields):
    values = dict.fromkeys(CudaCall._fields, 0)
    values |= {
        "end_ktime_ns": 200,
        "program_ktime_ns": 5,
        "pid": 42,
        "tid": 43,
        "start_ktime_ns": 150,
        "api": 1,
        "weight": 1,
        "grid": (1, 1, 1),
        "block": (32, 1, 1),
        "comm": "pt_main",
    }
    return CudaCall(**(values | fields))


def key(**fields):
    values = dict.fromkeys(SeriesKey._fields, 0)
    values |= {"program_ktime_ns": 5, "pid": 42, "metric": wire.METRIC_CALL_DURATION, "api": 5}
    return SeriesKey(**(values | fields))


def stall(**fields):
    values = dict.fromkeys(Stall._fields, 0)
    values |= {
        "end_ktime_ns": 300,
        "program_ktime_ns": 5,
        "pid": 42,
        "tid": 43,
        "start_ktime_ns": 100,
        "runnable_ktime_ns": 250,
        "culprit_pid": 1,
        "culprit_tid": 1,
        "switch_type": wire.SWITCH_VOLUNTARY,
        "kernel_stack": -1,
        "system_call": -1,
        "comm": "pt_main",
        "culprit_comm": "hog",
        "waker_comm": "",
    }
    return Stall(**(values | fields))


@pytest.fixture
def enricher():
    enricher = Enricher()
    list(enricher.enrich([CAPTURE, CLOCK, SEEN, DEVICE]))
    return enricher


def enricher_on(arch):
    enricher = Enricher()
    host = CAPTURE.info["host"] | {"arch": arch}
    list(enricher.enrich([CAPTURE._replace(info=CAPTURE.info | {"host": host}), CLOCK]))
    return enricher


def only(enricher, event):
    (activity,) = enricher.enrich([event])
    return activity


def test_a_capture_is_dated_by_the_clock_that_follows_it():
    """The first activity is the capture, in Unix time."""
    activities = list(Enricher().enrich([CAPTURE, CLOCK, SEEN, cuda_call()]))

    assert activities[0] == CaptureActivity(
        T0 + 10, CAPTURE.info, capture_seed(T0 + 10, CAPTURE.info)
    )
    assert isinstance(activities[1], CallActivity)
    assert len(activities) == 2


def test_two_captures_do_not_share_ids():
    """Ids come from the capture that an activity belongs to, wherever one begins."""
    events = [CAPTURE, CLOCK, cuda_call(), CAPTURE, Clock(11, T0 + 12), cuda_call()]
    first, call, second, later_call = Enricher().enrich(events)

    assert call[-3:] == SpanIds(first.seed).of_call(call.event)
    assert later_call[-3:] == SpanIds(second.seed).of_call(call.event)
    assert call.trace_id != later_call.trace_id


def test_a_capture_without_a_clock_comes_all_the_same():
    """The capture is never held back, and never comes after another activity."""
    seed = capture_seed(10, CAPTURE.info)
    assert list(Enricher().enrich([CAPTURE])) == [CaptureActivity(10, CAPTURE.info, seed)]
    kinds = [type(activity) for activity in Enricher().enrich([CAPTURE, cuda_call()])]
    assert kinds == [CaptureActivity, CallActivity]


def test_a_call_gets_times_names_and_its_device(enricher):
    """All that a span needs is in the activity."""
    event = cuda_call()
    activity = only(enricher, event)

    assert activity.event is event
    assert activity.process.service_name == "t.py"
    assert activity.process.attributes["host.name"] == "node1"
    assert activity.api.name == "cudaLaunchKernel"
    assert (activity.start_unix_ns, activity.end_unix_ns) == (T0 + 150, T0 + 200)
    assert activity.device == H100


def test_a_call_of_an_unknown_process_has_a_placeholder(enricher):
    """A call is never dropped because nobody knows its process."""
    activity = only(enricher, cuda_call(pid=77, device=-1, comm="ghost"))

    assert activity.process.service_name == "ghost"
    assert activity.device is None


def test_an_api_of_a_later_version_keeps_its_number(enricher):
    """A recording may hold rows of a probe table that this version does not have."""
    driver = only(enricher, cuda_call(api=159)).api
    runtime = only(enricher, cuda_call(api=98)).api

    assert (driver.name, driver.layer_name) == ("unknown_api_159", "driver")
    assert (runtime.name, runtime.layer_name) == ("unknown_api_98", "runtime")


def test_a_stall_gets_times_and_its_process(enricher):
    """Its three moments are in Unix time."""
    event = stall()
    activity = only(enricher, event)

    assert activity == StallActivity(
        activity.process,
        event,
        T0 + 100,
        T0 + 250,
        T0 + 300,
        "unknown",
        (),
        None,
        *SpanIds(capture_seed(T0 + 10, CAPTURE.info)).of_stall(event),
    )
    assert activity.process.service_name == "t.py"


def test_a_stall_knows_what_it_was_blocked_on(enricher):
    """Its stack says why; without one its system call does, by the numbers of that machine."""
    functions = ("schedule", "anon_pipe_read")
    blocked, stackless = enricher.enrich(
        [Stack(90, 9, functions), stall(kernel_stack=9), stall(system_call=202)]
    )

    assert (blocked.reason, blocked.functions) == ("ipc", functions)
    assert (stackless.reason, stackless.functions) == ("unknown", ())

    elsewhere, on_arm, on_x86 = [
        only(enricher_on(arch), stall(system_call=98 if arch == "aarch64" else 202))
        for arch in ("riscv64", "aarch64", "x86_64")
    ]
    assert (elsewhere.reason, on_arm.reason, on_x86.reason) == ("unknown", "lock", "lock")


def test_a_thread_that_was_preempted_was_not_blocked(enricher):
    """Time in a run queue alone has no reason, whatever stack is about."""
    events = [Stack(90, 9, ("do_wait",)), stall(runnable_ktime_ns=100, kernel_stack=9)]

    [activity] = enricher.enrich(events)

    assert (activity.reason, activity.functions) == ("", ("do_wait",))


def test_stacks_are_those_of_their_capture(enricher):
    """The next capture numbers its stacks anew."""
    list(enricher.enrich([Stack(90, 9, ("do_wait",)), CAPTURE, CLOCK]))

    assert only(enricher, stall(kernel_stack=9)).functions == ()


def test_a_gap_has_the_names_of_the_calls_around_it(enricher):
    """It is dated, and is on the device of its thread."""
    event = Gap(300, 5, 42, 43, 100, 50, 20, 0, 1, 1, 10, 1, 2, "pt_main")
    activity = only(enricher, event)

    assert isinstance(activity, GapActivity)
    assert activity.event is event
    assert activity.process.service_name == "t.py"
    assert (activity.previous_api.name, activity.next_api.name) == (
        "cudaMalloc",
        "cudaLaunchKernel",
    )
    assert (activity.start_unix_ns, activity.end_unix_ns) == (T0 + 100, T0 + 300)
    assert activity.device == H100


def test_the_time_account_is_summed_by_reason(enricher):
    """Two stacks with one reason are one sum; an entry that did not change still counts."""
    blocked = TimesKey(5, 42, 9, 202, wire.STATE_BLOCKED, wire.CONTEXT_CALL, 0)
    entries = (
        TimesEntry(blocked, 100, 1),
        TimesEntry(blocked._replace(kernel_stack=10), 20, 2),
        TimesEntry(blocked._replace(flags=wire.STALL_GIL), 7, 1),
        TimesEntry(blocked._replace(kernel_stack=-1, system_call=-1), 3, 1),
        TimesEntry(TimesKey(5, 42, -1, -1, wire.STATE_ON_CPU, wire.CONTEXT_GAP, 0), 1000, 5),
    )
    first, second = enricher.enrich(
        [
            Stack(90, 9, ("futex_do_wait",)),
            Stack(90, 10, ("do_futex",)),
            Times(600, entries),
            Times(700, (TimesEntry(blocked, 150, 3),)),
        ]
    )

    def sums(activity):
        assert isinstance(activity, TimesActivity)
        assert all(type(time) is ThreadTime for time in activity.times)
        assert {time.process.service_name for time in activity.times} == {"t.py"}
        return sorted(time[1:6] for time in activity.times)

    assert first.unix_ns == T0 + 600
    assert sums(first) == [
        (wire.STATE_ON_CPU, wire.CONTEXT_GAP, "", 1000, 5),
        (wire.STATE_BLOCKED, wire.CONTEXT_CALL, "gil", 7, 1),
        (wire.STATE_BLOCKED, wire.CONTEXT_CALL, "lock", 120, 3),
        (wire.STATE_BLOCKED, wire.CONTEXT_CALL, "unknown", 3, 1),
    ]
    assert sums(second)[2] == (wire.STATE_BLOCKED, wire.CONTEXT_CALL, "lock", 170, 5)
    assert len(sums(second)) == 4


def test_a_stop_by_the_agent_is_in_no_account_of_the_program(enricher):
    """
    What was read of it before it ended goes to where it ended; what others stopped stays.

    Until its end, nobody knows who makes a thread go on.
    """
    stopped = TimesKey(5, 42, 9, -1, wire.STATE_BLOCKED, wire.CONTEXT_OTHER, 0)
    ours = stopped._replace(flags=wire.STALL_AGENT)
    stack = Stack(90, 9, ("schedule", "do_signal_stop", "get_signal"))
    before, after, later = enricher.enrich(
        [
            stack,
            Times(600, (TimesEntry(stopped, 70, 0),)),
            Times(700, (TimesEntry(stopped, 70, 0), TimesEntry(ours, 27, 1, 97))),
            Times(800, (TimesEntry(stopped, 83, 1, 13), TimesEntry(ours, 27, 1, 97))),
        ]
    )

    def sums(activity):
        return {time.reason: (time.time_ns, time.count, time.ended_ns) for time in activity.times}

    assert sums(before) == {"stopped": (70, 0, 0)}
    assert sums(after) == {"capture": (97, 1, 97)}
    assert sums(later) == {"capture": (97, 1, 97), "stopped": (13, 1, 13)}


def test_the_time_account_of_another_image_is_its_own(enricher):
    """
    Only images that a record is about are in its activity; one that ended starts from nothing.
    """
    running = TimesKey(5, 42, -1, -1, wire.STATE_RUN_QUEUE, wire.CONTEXT_CALL, 0)
    other = running._replace(pid=77)
    activities = enricher.enrich(
        [
            Times(600, (TimesEntry(running, 10, 1),)),
            Times(700, (TimesEntry(other, 20, 1),)),
            Exit(800, 5, 42, 42, 0, 0, "python"),
            Times(900, (TimesEntry(running._replace(context=wire.CONTEXT_GAP), 1, 1),)),
        ]
    )

    found = [[time[0].pid, *time[1:6]] for a in activities for time in getattr(a, "times", ())]
    assert sorted(found, key=lambda time: time[0]) == [
        [42, wire.STATE_RUN_QUEUE, wire.CONTEXT_CALL, "", 10, 1],
        [42, wire.STATE_RUN_QUEUE, wire.CONTEXT_GAP, "", 1, 1],
        [77, wire.STATE_RUN_QUEUE, wire.CONTEXT_CALL, "", 20, 1],
    ]


def test_a_cpu_that_was_taken_away_is_told_from_one_that_was_not_free(enricher):
    """Both are time in a run queue: of the one the thread was at work, of the other it was woken."""
    woken = TimesKey(5, 42, -1, -1, wire.STATE_RUN_QUEUE, wire.CONTEXT_GAP, wire.STALL_IDLE_CPU)
    lost = woken._replace(flags=wire.STALL_PREEMPTED | wire.STALL_IDLE_CPU)
    entries = (
        TimesEntry(woken, 10, 1),
        TimesEntry(lost, 20, 3),
        TimesEntry(lost._replace(flags=32), 7, 1),
    )

    (activity,) = enricher.enrich([Times(600, entries)])

    assert [(time.reason, time.time_ns, time.count) for time in activity.times] == [
        ("", 10, 1),
        (WaitReason.PREEMPTED, 27, 4),
    ]


def test_pressure_passes_with_its_time(enricher):
    """What the host said of its load is dated and otherwise unchanged."""
    info = {"load1": 0.5}

    assert only(enricher, Pressure(700, info)) == PressureActivity(T0 + 700, info)


def test_a_fork_names_both_processes(enricher):
    """The child has its parent's names until its own come."""
    event = Fork(300, 5, 42, 43, 280, 290, 0, 0, 77, "pt_main")
    activity = only(enricher, event)

    assert isinstance(activity, ForkActivity)
    assert (activity.process.pid, activity.child.pid) == (42, 77)
    assert activity.child.service_name == "t.py"
    assert (activity.start_unix_ns, activity.end_unix_ns) == (T0 + 280, T0 + 300)
    assert only(enricher, cuda_call(pid=77, program_ktime_ns=290)).process is activity.child


def test_a_step_has_the_ids_of_the_programs_own_span(enricher):
    """One without a span has ids that no call of its moment has."""
    seen = Step(300, 5, 42, 43, 100, 7, 20, b"", b"", 0, wire.STEP_FOUND, 90, 1, "", "pt_main")
    told = seen._replace(trace_id=b"T" * 16, span_id=b"S" * 8, source=wire.STEP_REPORTED)

    step, own, call = enricher.enrich([seen, told, cuda_call(start_ktime_ns=100, tid=43)])

    assert isinstance(step, StepActivity)
    assert (step.start_unix_ns, step.end_unix_ns) == (T0 + 100, T0 + 300)
    assert step.process is call.process
    assert len(step.trace_id) == 16
    assert len({step.trace_id, call.trace_id}) == len({step.span_id, call.span_id}) == 2
    assert (own.trace_id, own.span_id, own.parent_span_id) == (b"T" * 16, b"S" * 8, b"")


def test_an_exec_ends_the_old_image_and_names_the_new_one(enricher):
    """Calls after the exec belong to the new program, which has learnt no devices yet."""
    exec_event = Exec(400, 400, 42, 42, 5, 1, 1, 0, "server", "/opt/server")

    end, call = enricher.enrich([exec_event, cuda_call(program_ktime_ns=400)])

    assert (end.process.program_ktime_ns, end.end_unix_ns) == (5, T0 + 400)
    assert end.is_replaced
    assert call.process.service_name == "server"
    assert call.device == DeviceIdentity(0, None, None)


def test_an_exit_ends_its_image(enricher):
    """Records that come after the exit still find their process."""
    exit_activity, late = enricher.enrich([Exit(500, 5, 42, 42, 0, 9, "python"), cuda_call()])

    assert exit_activity == ExitActivity(late.process, T0 + 500, 9)


def test_an_open_call_is_seen_while_it_hangs(enricher):
    """It has a start, and the moment at which it was looked at, which is no end."""
    event = OpenCall(900, 5, 42, 43, 100, 100, 0, 0, 0, 0, 5, 0, "pt_main")
    activity = only(enricher, event)

    assert isinstance(activity, OpenCallActivity)
    assert activity.api.name == "cudaStreamSynchronize"
    assert (activity.start_unix_ns, activity.seen_unix_ns) == (T0 + 100, T0 + 900)
    assert activity.device == H100


def test_series_get_names(enricher):
    """Calls have an API; gaps and waits have none, though their key has a number there."""
    keys = [
        key(),
        key(metric=wire.METRIC_LAUNCH_GAP, api=0),
        key(metric=wire.METRIC_OFF_CPU, api=wire.SWITCH_VOLUNTARY, device=-1),
    ]
    activity = only(enricher, Aggregates(600, tuple((each, AGGREGATE) for each in keys)))

    assert isinstance(activity, AggregatesActivity)
    assert activity.unix_ns == T0 + 600
    assert [series.key for series in activity.series] == keys
    assert [series.api and series.api.name for series in activity.series] == [
        "cudaStreamSynchronize",
        None,
        None,
    ]
    assert [series.device for series in activity.series] == [
        H100,
        H100,
        None,
    ]
    assert {series.process.service_name for series in activity.series} == {"t.py"}
    assert all(series.aggregate is AGGREGATE for series in activity.series)


def test_counters_get_the_names_of_their_enumerators(enricher):
    """Counters that a later version added keep their number."""
    values = (*range(wire.COUNTER_COUNT + 1), 99)
    activity = only(enricher, Counters(700, values))

    assert isinstance(activity, CountersActivity)
    assert activity.unix_ns == T0 + 700
    assert activity.values["counter_lost_ring_full"] == 0
    assert activity.values["counter_probe_entries"] == 11
    assert activity.values[f"counter_{wire.COUNTER_COUNT + 1}"] == 99


def test_agent_s_own_events_pass_with_their_time(enricher):
    """Probes and status are dated and otherwise unchanged."""
    probes, status = {"library": "/lib/libcuda.so.1"}, {"cpu_ns": 5}
    activities = enricher.enrich([Probes(700, probes), Status(800, status)])

    assert list(activities) == [
        ProbesActivity(T0 + 700, probes),
        StatusActivity(T0 + 800, status),
    ]


def test_what_names_a_stack_has_it(enricher):
    """
    A call, a stall and an open call have the frames of the stack that they name, and where
    in the program that was.
    """
    off_cpu = stall(user_stack=7)
    stack = UserStack(100, 7, FRAMES, False, "frame_pointer", "ok")
    open_call = OpenCall(900, 5, 42, 43, 100, 100, 0, 0, 7, 0, 5, 0, "pt_main")

    activities = list(
        enricher.enrich([stack, cuda_call(user_stack=7), off_cpu, open_call, cuda_call()])
    )

    place = FRAMES[1]
    assert activities[0].stack == CallStack(7, FRAMES, False, "frame_pointer", "ok", place)
    assert activities[1].stack is activities[0].stack
    assert activities[2].stack is activities[0].stack
    assert activities[3].stack is None


def test_a_stack_that_was_not_told_is_none(enricher):
    """An id that leads nowhere is not handed on, and stacks are those of their capture."""
    told = UserStack(100, 7, FRAMES, True, "eh_frame", "ok")

    before, after = (
        activity
        for activity in enricher.enrich(
            [told, cuda_call(user_stack=8), CAPTURE, CLOCK, cuda_call(user_stack=7)]
        )
        if isinstance(activity, CallActivity)
    )

    assert (before.stack, after.stack) == (None, None)


@pytest.mark.parametrize(
    ("runnable_ktime_ns", "stack", "flags", "reason"),
    [
        (150, 7, 0, "queue"),
        (150, 0, 0, "lock"),
        (150, 7, wire.STALL_GIL, "gil"),
        (100, 7, 0, ""),
    ],
)
def test_a_user_stack_makes_a_reason_more_exact(enricher, runnable_ktime_ns, stack, flags, reason):
    """
    What is a futex to the kernel is a queue to the program; what the kernel knows to be the
    GIL stays that, and a thread that was not blocked has no reason.
    """
    values = dict.fromkeys(Stall._fields, 0) | {
        "start_ktime_ns": 100,
        "runnable_ktime_ns": runnable_ktime_ns,
        "end_ktime_ns": 200,
        "kernel_stack": 3,
        "user_stack": stack,
        "comm": "",
        "flags": flags,
    }
    events = [
        Stack(90, 3, ("schedule", "futex_wait")),
        UserStack(100, 7, GET_FRAMES, True, "eh_frame", "ok"),
        Stall(**values),
    ]

    [activity] = [one for one in enricher.enrich(events) if isinstance(one, StallActivity)]
    assert activity.reason == reason


def test_enriching_goes_on_where_it_stopped(enricher):
    """What one call learnt, the next one knows."""
    first = only(enricher, cuda_call())
    second = only(enricher, cuda_call())

    assert first.process is second.process


def test_every_kind_of_event_is_known():
    """An event that the decoder can make is one that the enricher takes."""
    assert {*Enricher()._handlers, Capture} == set(typing.get_args(Event))


# Any numbers, small ones mostly, so that pids and images meet again.
small = st.integers(0, 3)
moment = st.integers(0, 200) | st.integers(0, (1 << 64) - 1)
text = st.text(max_size=8)
# What the decoder lets through: of the fields that the name resolver reads.
number = st.none() | st.integers(-(1 << 63), (1 << 63) - 1)
scalar = st.none() | st.booleans() | number | st.floats(allow_nan=False) | text
FACTS = st.fixed_dictionaries(
    {"kind": st.sampled_from(["file", "tcp", "other"])},
    optional={
        **dict.fromkeys(("start_boot_ns", "boot_offset_ns", "ppid", "vpid"), number),
        **dict.fromkeys(("exe", "owner", "mountinfo_container_id"), st.none() | text),
        **dict.fromkeys(("command_args", "cgroups"), st.lists(text, max_size=3)),
        "comm": text,
        "env": st.dictionaries(text, text, max_size=3),
        "otel_context": st.none()
        | st.dictionaries(text, scalar | st.lists(scalar, max_size=3), max_size=3),
        "host": st.fixed_dictionaries(
            {}, optional=dict.fromkeys(("name", "id", "arch", "boot_id"), st.none() | text)
        ),
    },
)
MAPS = st.fixed_dictionaries(
    {
        "segments": st.lists(st.tuples(small, small), max_size=2),
        "blocks": st.lists(st.tuples(small, small, small), max_size=2),
        "left_out": small,
        "smallest_bytes": small,
    }
)
BY_FIELD = {
    "comm": text,
    "culprit_comm": text,
    "waker_comm": text,
    "path": text,
    "name": text,
    **dict.fromkeys(("reported_by", "bus_id", "reported_name", "message"), text),
    "uuid": st.binary(max_size=20),
    "grid": st.tuples(small, small, small),
    "block": st.tuples(small, small, small),
    "info": FACTS,
    "facts": FACTS,
    "values": st.lists(moment, max_size=20).map(tuple),
    "device": st.integers(-2, 1 << 31),
    "api": st.sampled_from([0, 65535, *API_BY_NUMBER]),
    "buckets": st.just(()),
    "functions": st.lists(
        text | st.sampled_from(["do_futex", "io_schedule", "handle_mm_fault"]), max_size=4
    ).map(tuple),
    "frames": st.lists(
        st.builds(
            Frame,
            st.sampled_from(["cpython", "native", "cut"]),
            text | st.just("take_gil"),
            text | st.just("/usr/lib/python3.11/queue.py"),
            small,
            text | st.just("libcuda.so.1"),
            small,
        ),
        max_size=5,
    ).map(tuple),
    "state": st.sampled_from([wire.STATE_ON_CPU, wire.STATE_RUN_QUEUE, wire.STATE_BLOCKED, 9]),
}


def any_of(kind):
    return st.builds(
        kind,
        **{
            name: MAPS
            if (kind, name) == (MemoryMap, "info")
            else BY_FIELD.get(name, moment if "ktime" in name else small)
            for name in kind._fields
            if name not in NESTED
        },
        **{name: NESTED[name]() for name in kind._fields if name in NESTED},
    )


NESTED = {
    "series": lambda: st.lists(st.tuples(any_of(SeriesKey), any_of(Aggregate)), max_size=3).map(
        tuple
    ),
    "entries": lambda: st.lists(any_of(TimesEntry), max_size=4).map(tuple),
    "key": lambda: any_of(TimesKey),
    "readings": lambda: st.lists(
        st.tuples(any_of(CommunicatorKey), any_of(Communicator)), max_size=2
    ).map(tuple),
    "recent": lambda: st.lists(any_of(QueuedCollective), max_size=2).map(tuple),
    "signature": lambda: any_of(Signature),
    "trace_id": lambda: st.binary(min_size=16, max_size=16),
    "span_id": lambda: st.binary(min_size=8, max_size=8),
    "parent_span_id": lambda: st.binary(min_size=8, max_size=8),
    "totals": lambda: st.lists(st.tuples(any_of(DeviceKey), any_of(MemoryTotals)), max_size=2).map(
        tuple
    ),
    "holders": lambda: st.lists(st.tuples(any_of(HolderKey), any_of(Holder)), max_size=3).map(
        tuple
    ),
}
EVENTS = st.one_of([any_of(kind) for kind in typing.get_args(Event)])


WAITING = (CpuSample, CudaCall, Fork, Gap, OpenCall, Range, Stall, Step)


# A stall waits for the name of a process that a full table has dropped when more of it comes.
DROPPED = [
    stall(pid=2, program_ktime_ns=0),
    Fork(0, 0, 0, 0, 0, 0, 0, 0, 1, ""),
    Fork(0, 1, 0, 0, 0, 0, 0, 0, 0, ""),
    Gap(0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ""),
]
# The child that a fork brings in takes the place of its parent, of which something waits.
CROWDED = [
    Fork(0, 0, 0, 0, 0, 2, 0, 0, 0, ""),
    OpenCall(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ""),
    Aggregates(
        0,
        tuple(
            (SeriesKey(image, 0, 0, 0, 0, 0, 0, 0), Aggregate(0, 0, 0, 0, ()))
            for image in (0, 1, 3)
        ),
    ),
]

# What waits is of an image that is not in the table any more, and finds no room in it again.
FULL = [
    Fork(0, 2, 0, 0, 0, 1, 0, 0, 0, ""),
    Device(0, 3, 0, 0, 0, b"", ""),
    Exit(0, 0, 0, 0, 0, 0, ""),
]


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENTS, max_size=40))
@example(CROWDED)
@example(DROPPED)
@example(FULL)
def test_no_order_of_events_stops_the_stream(events):
    """
    Whatever comes in whatever order, each event that has an activity yields it once. Those of
    one process image stay in order, and so does what is of no process.
    """
    activities = list(Enricher(max_programs=4, max_dead=2).enrich(events))

    told = [
        activity
        for activity in activities
        if hasattr(activity, "event")
        and not isinstance(activity, OutOfMemoryActivity | ContextActivity)
    ]
    failed = [id(a.event) for a in activities if isinstance(a, OutOfMemoryActivity)]
    assert len(failed) == len({*failed})
    reports = [e for e in events if isinstance(e, OutOfMemory)]
    assert {id(e) for e in reports if e.source != wire.OUT_OF_MEMORY_CALL} <= {*failed}
    # Those of devices are of no process, or of one.
    of_devices = [e for e in events if isinstance(e, DeviceFault) and not e.program_ktime_ns]
    nobodys = [a for a in told if a.process is None]
    assert [id(a.event) for a in nobodys] == list(map(id, of_devices))
    told = [a for a in told if a.process is not None]
    expected = [
        event
        for event in events
        if isinstance(event, WAITING) or (isinstance(event, DeviceFault) and event.program_ktime_ns)
    ]
    assert sorted(id(activity.event) for activity in told) == sorted(map(id, expected))
    for activity in told:
        image = (activity.event.pid, activity.event.program_ktime_ns)
        assert (activity.process.pid, activity.process.program_ktime_ns) == image
        assert activity.process.service_name
    for image in {(event.pid, event.program_ktime_ns) for event in expected}:
        of_image = [e for e in expected if (e.pid, e.program_ktime_ns) == image]
        found = [a.event for a in told if (a.process.pid, a.process.program_ktime_ns) == image]
        assert list(map(id, found)) == list(map(id, of_image))
    others = {Exit: ExitActivity, Exec: ExitActivity, Capture: CaptureActivity}
    others |= {Counters: CountersActivity, Pressure: PressureActivity}
    others |= {Probes: ProbesActivity, Status: StatusActivity}
    assert [type(a) for a in activities if type(a) in others.values()] == [
        others[type(event)] for event in events if type(event) in others
    ]
    readings = [activity for activity in activities if isinstance(activity, AggregatesActivity)]
    assert len(readings) >= sum(isinstance(event, Aggregates) for event in events)


def processes_by_program(activities):
    """Every process that activities are about, by pid and program_ktime_ns."""
    found = {}
    for activity in activities:
        about = [getattr(activity, "process", None)]
        about += [one.process for one in getattr(activity, "series", ())]
        about += [one.process for one in getattr(activity, "times", ())]
        for process in filter(None, about):
            found.setdefault((process.pid, process.program_ktime_ns), set()).add(process)
    return found


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENTS, max_size=40))
def test_a_process_image_is_one_process_whatever_comes_when(events):
    """Nothing that is learnt of an image changes it once anything of it has left."""
    # What is forgotten is another one when more of it comes: here nothing is.
    with patch.object(processes, "REMEMBER_DEAD_NS", 1 << 64):
        found = processes_by_program(Enricher().enrich(events))

    assert {len(processes) for processes in found.values()} <= {1}


def test_what_comes_before_the_name_of_its_process_waits_for_it():
    """
    A call, a series and the time account of a process are its own, whatever it is called first.
    """
    times_key = TimesKey(5, 42, -1, -1, wire.STATE_ON_CPU, wire.CONTEXT_CALL, 0)
    activities = list(
        Enricher().enrich(
            [
                CAPTURE,
                CLOCK,
                cuda_call(),
                Aggregates(25, ((key(), AGGREGATE),)),
                Times(26, (TimesEntry(times_key, 7, 1),)),
                Aggregates(27, ((key(), AGGREGATE._replace(sum=200)),)),
                SEEN,
                Counters(40, (1,)),
            ]
        )
    )

    kinds = [type(activity) for activity in activities]
    call = next(a for a in activities if isinstance(a, CallActivity))
    assert call.process.service_name == "t.py"
    assert processes_by_program(activities) == {(42, 5): {call.process}}
    *_, reading = (a for a in activities if isinstance(a, AggregatesActivity))
    assert [one.aggregate.sum for one in reading.series] == [200]
    assert reading.unix_ns == T0 + 30
    assert kinds[-1] is CountersActivity
    assert kinds.index(CallActivity) < len(kinds) - 1


def test_an_error_about_one_that_waited_costs_that_one_alone(monkeypatch):
    """The others of its process are handed on, and it is counted."""
    monkeypatch.setattr(SpanIds, "of_stall", lambda *_: 1 / 0)
    faults = Faults()
    events = [CAPTURE, CLOCK, cuda_call(), stall(), cuda_call(tid=44), SEEN]

    activities = list(Enricher().enrich(events, faults))

    assert [a.event.tid for a in activities if isinstance(a, CallActivity)] == [43, 44]
    assert faults.status()["errors"] == {"enrich": 1}
    with pytest.raises(ZeroDivisionError):
        list(Enricher().enrich(events))


def test_a_process_that_ended_before_it_was_known_is_named_by_its_exec():
    """/proc had no time to say anything; the kernel's record of the exec did."""
    activities = list(
        Enricher().enrich(
            [
                CAPTURE,
                CLOCK,
                SEEN,
                Exec(50, 50, 42, 42, 5, 0, 0, 0, "helper", "/opt/bin/nvidia-helper"),
                cuda_call(program_ktime_ns=50),
                Aggregates(60, ((key(program_ktime_ns=50), AGGREGATE),)),
                Exit(61, 50, 42, 42, 0, 0, "helper"),
                ProcessSeen(62, 50, 42, {"exe": "/usr/bin/reused", "comm": "reused"}),
                cuda_call(program_ktime_ns=50),
            ]
        )
    )

    (process,) = processes_by_program(activities)[42, 50]
    assert process.service_name == "nvidia-helper"
    assert process.attributes["process.executable.path"] == "/opt/bin/nvidia-helper"
    assert [type(a) for a in activities[-5:]].count(CallActivity) == 2


@pytest.mark.parametrize(("comm", "patience_ns"), [("ghost", 3_000_000_000), ("", 60_000_000_000)])
def test_who_is_never_introduced_is_waited_for_no_longer_than_needed(comm, patience_ns):
    """The stream's time decides; one that has no name at all is given more of it."""
    enricher = Enricher()
    list(enricher.enrich([CAPTURE, CLOCK]))

    def said(ktime_ns):
        events = iter([Counters(ktime_ns, ())])
        running = enricher.enrich(events)
        return [type(activity) for activity in [next(running)]]

    running = enricher.enrich(iter([cuda_call(pid=9, comm=comm), Counters(200 + patience_ns, ())]))
    assert type(next(running)) is CountersActivity
    running.close()
    assert said(201 + patience_ns) == [CallActivity]


def test_what_waits_is_bounded():
    """
    Many processes that nobody introduces do not fill the memory; those that waited longest go.
    """
    enricher = Enricher()
    calls = [cuda_call(pid=1 + number // 100) for number in range(MAX_HELD + 150)]

    held = enricher.enrich(iter([*calls, Counters(300, ())]))
    told = [next(held) for _ in range(200)]

    assert [activity.event for activity in told] == calls[:200]
    assert type(next(held)) is CountersActivity


@settings(max_examples=50, deadline=None)
@given(st.lists(EVENTS, max_size=40))
def test_a_replay_gives_what_the_capture_gave(events):
    """Nothing but the events decides what comes out."""
    assert repr(list(Enricher().enrich(events))) == repr(list(Enricher().enrich(events)))


def test_the_dead_have_their_names_until_they_were_read():
    """
    Where the agent is late, it learns of more exits at once than it remembers: what is read of them
    after that is of the same process as what was sent before.
    """
    pids = range(1000, 1000 + 2 * processes.MAX_DEAD)
    calls = [cuda_call(pid=pid) for pid in pids]
    names = [ProcessSeen(210, 5, pid, SEEN.facts) for pid in pids]
    exits = [Exit(220, 5, pid, pid, 0, 0, "z") for pid in pids]
    readings = [
        Aggregates(230, tuple((key(pid=pid), AGGREGATE) for pid in pids)),
        Times(231, tuple(TimesEntry(TimesKey(5, pid, -1, -1, 0, 0, 0), 1, 1) for pid in pids)),
    ]
    enricher = Enricher()
    found = processes_by_program(
        enricher.enrich([CAPTURE, CLOCK, *calls, *names, *exits, *readings])
    )

    assert {(pid, 5): 1 for pid in pids} == {image: len(known) for image, known in found.items()}
    # Who was read is remembered no longer than others.
    list(enricher.enrich([*readings, Counters(240, ()), Exit(250, 5, pids[-1] + 1, 1, 0, 0, "z")]))
    assert len(enricher._processes) <= processes.MAX_DEAD


def test_memory_is_bounded():
    """Thousands of pids, devices and forks leave behind no more than the limits allow."""
    enricher = Enricher(max_programs=16, max_dead=8)
    for pid in range(1, 2_001):
        events = [
            Clock(pid, pid),
            ProcessSeen(pid, pid, pid, SEEN.facts),
            Device(pid, pid, pid, pid, 0, UUID, "H100"),
            Fork(pid, pid, pid, pid, pid, pid, 0, 0, pid + 1, "x"),
            Exec(pid, pid + 1, pid, pid, pid, 0, 0, 0, "y", "/y"),
            cuda_call(pid=pid, program_ktime_ns=pid + 2),
            Aggregates(pid, ((key(pid=pid, program_ktime_ns=pid + 3), AGGREGATE),)),
            Times(pid, (TimesEntry(TimesKey(pid + 1, pid, -1, -1, 0, 0, 0), 1, 1),)),
            Times(pid, (TimesEntry(TimesKey(pid + 3, pid, -1, -1, 0, 0, 0), 1, 1),)),
            Times(
                pid,
                tuple(
                    TimesEntry(TimesKey(1, 9000 + 50 * pid + n, 1, 1, 2, 0, 0), 1, 1)
                    for n in range(40)
                ),
            ),
            *(Stack(pid, pid * 10 + number, ("schedule",)) for number in range(10)),
            *(UserStack(pid, pid * 10 + n + 1, FRAMES, True, "none", "ok") for n in range(10)),
            Exit(pid, pid + 3, pid, pid, 0, 0, "z"),
        ]
        for _ in enricher.enrich(events):
            pass

    processes = enricher._processes
    assert len(processes) <= 16
    assert len(processes._facts) <= 16
    assert len(processes._current) <= 16
    assert len(processes._dead) <= 8
    assert set(enricher._resolver.devices._by_program) <= set(processes._programs)
    assert len(enricher._resolver.waits._stacks) <= 16384
    assert len(enricher._resolver.stacks._stacks) <= 16384
    entries = [one.entries for one in enricher._times._accounts.values()]
    assert sum(map(len, entries)) == enricher._times._size <= 65536
    assert (2_000, 2_003) not in enricher._times
