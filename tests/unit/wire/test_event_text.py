"""Events as lines of text."""

from hypothesis import given
from hypothesis import strategies as st

from otel_gpu import wire
from otel_gpu.wire.event_text import describe
from otel_gpu.wire.events import Clock, CudaCall, Device, Exec, Gap, Stall
from otel_gpu.wire.frames import Frame
from otel_gpu.wire.readings import (
    Aggregate,
    Aggregates,
    Counters,
    Pressure,
    SeriesKey,
    Times,
    TimesEntry,
    TimesKey,
)
from otel_gpu.wire.symbol_records import ProcessSeen, Stack, UserStack

CALL = CudaCall(
    end_ktime_ns=1500,
    program_ktime_ns=7,
    pid=10,
    tid=11,
    start_ktime_ns=1000,
    parent_start_ktime_ns=0,
    root_start_ktime_ns=1000,
    blocked_ns=0,
    run_queue_ns=0,
    size_bytes=4096,
    address=0x7F00_0000_1000,
    stream=0,
    function=0x5500_0000_0010,
    user_stack=0x5AC0_0000_0000_0042,
    status=0,
    device=0,
    weight=1,
    voluntary_switches=0,
    involuntary_switches=0,
    cpu=3,
    grid=(8, 1, 1),
    block=(256, 1, 1),
    api=1,
    variant=0,
    copy_kind=255,
    choices=5,
    depth=0,
    comm="python3",
)


def test_a_call_is_one_line_with_names_for_its_numbers():
    """Kind, ktime, pid/tid, then every field under its own name."""
    assert list(describe(CALL)) == [
        (
            "cuda_call 1500 10/11 program_ktime_ns=7 start_ktime_ns=1000 parent_start_ktime_ns=0 "
            "root_start_ktime_ns=1000 blocked_ns=0 run_queue_ns=0 size_bytes=4096 "
            "address=0x7f0000001000 stream=0x0 function=0x550000000010 "
            "user_stack=5ac0000000000042 status=0 device=0 weight=1 "
            "voluntary_switches=0 involuntary_switches=0 cpu=3 grid=8x1x1 block=256x1x1 "
            'api=cudaLaunchKernel variant=0 copy_kind=none choices=failed|sampled depth=0 comm="python3"'
        )
    ]


def test_a_number_without_a_name_stays_a_number():
    """A later version's numbers are shown as they are."""
    [line] = describe(CALL._replace(api=0xFFFF, copy_kind=77, choices=0))

    assert "api=65535 variant=0 copy_kind=77 choices=0 " in line


def test_a_stall_names_what_it_waited_for():
    """A stall's line has the switch type by name and three threads by name."""
    stall = Stall(
        20, 7, 10, 11, 5, 9, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 2, 9, 202, 0x7F10, 1, "me", "hog", ""
    )

    assert list(describe(stall)) == [
        (
            "stall 20 10/11 program_ktime_ns=7 start_ktime_ns=5 runnable_ktime_ns=9 "
            "call_start_ktime_ns=0 root_start_ktime_ns=0 user_stack=0 culprit_pid=1 culprit_tid=2 "
            "waker_pid=3 waker_tid=4 cpu=0 call_api=0 call_depth=0 switch_type=involuntary kernel_stack=9 "
            'system_call=202 argument=0x7f10 flags=1 comm="me" culprit_comm="hog" waker_comm="" '
            "resource=0"
        )
    ]


def test_a_gap_names_the_calls_around_it():
    """A gap is a line like a call's, with both APIs by name."""
    gap = Gap(20, 7, 10, 11, 5, 9, 1, -1, 2, 3, 10, 1, 2, "me")

    assert list(describe(gap)) == [
        (
            "gap 20 10/11 program_ktime_ns=7 start_ktime_ns=5 blocked_ns=9 run_queue_ns=1 device=-1 "
            "voluntary_switches=2 involuntary_switches=3 previous_api=cudaMalloc "
            'next_api=cudaLaunchKernel choices=slow comm="me"'
        )
    ]


def test_a_stack_and_pressure_are_shown_as_json():
    """What a recording holds as JSON is shown as JSON."""
    stack = Stack(5, 9, ("schedule", "do_wait\n"))

    assert list(describe(stack)) == [
        'stack 5 0/0 kernel_stack=9 functions=["schedule", "do_wait\\n"]'
    ]
    assert list(describe(Pressure(5, {"load1": 0.5}))) == ['pressure 5 0/0 info={"load1":0.5}']


def test_a_user_stack_is_one_line_of_frames():
    """Its id is written as on spans; the frames are JSON, innermost first."""
    frames = (
        Frame("native", "at::empty", "", 0, "libtorch.so", 0x10),
        Frame("cpython", "main", "train.py", 74),
    )

    assert list(describe(UserStack(5, 0xAB, frames, False, "frame_pointer", "ok"))) == [
        (
            'user_stack 5 0/0 stack=00000000000000ab complete=false native="frame_pointer" '
            'python="ok" frames=[["native", "at::empty", "", 0, "libtorch.so", 16], '
            '["cpython", "main", "train.py", 74, "", 0]]'
        )
    ]


def test_the_time_account_has_a_line_for_each_entry():
    """State and context have their names; a later version's keep their numbers."""
    event = Times(
        50,
        (
            TimesEntry(
                TimesKey(7, 10, 3, 202, 2, 1, 1, wire.STATE_ON_CPU, 5, 6, 5, 8, api=1),
                *(30, 4, 20, "who", "end"),
            ),
            TimesEntry(TimesKey(7, 10, -1, -1, 9, 8, 0), 5, 1),
        ),
    )

    assert list(describe(event)) == [
        "times 50 0/0 entries=2",
        (
            "time 50 10/0 program_ktime_ns=7 state=blocked context=synchronize api=cudaLaunchKernel "
            "kernel_stack=3 system_call=202 flags=1 who_pid=5 who_tid=6 end_state=on_cpu end_pid=5 "
            "end_tid=8 end_kernel_stack=-1 end_system_call=-1 end_flags=0 resource=0 is_folded=0 "
            'time_ns=30 count=4 ended_ns=20 who_comm="who" end_comm="end"'
        ),
        (
            "time 50 10/0 program_ktime_ns=7 state=9 context=8 api=0 kernel_stack=-1 "
            "system_call=-1 flags=0 who_pid=0 who_tid=0 end_state=255 end_pid=0 "
            "end_tid=0 end_kernel_stack=-1 end_system_call=-1 end_flags=0 resource=0 is_folded=0 "
            'time_ns=5 count=1 ended_ns=0 who_comm="" end_comm=""'
        ),
    ]


def test_a_series_is_a_line_of_its_own():
    """Each series has a line under its record, with the buckets that count something."""
    aggregate = Aggregate(30, 5, 20, 0, (0, 2, 0, 1))
    event = Aggregates(
        50,
        (
            (SeriesKey(7, 10, 0, -1, 1, 30, 1, 0), aggregate),
            (SeriesKey(7, 10, 0, -1, 3, 1, 255, 0), aggregate),
        ),
    )

    assert list(describe(event)) == [
        "aggregates 50 0/0 series=2",
        (
            "series 50 10/0 program_ktime_ns=7 metric=call_duration api=cudaMemcpy "
            "copy_kind=host_to_device status=0 device=-1 nested=0 count=3 sum=30 min=5 max=20 "
            "size_bytes=0 buckets=1:2,3:1"
        ),
        (
            "series 50 10/0 program_ktime_ns=7 metric=off_cpu switch_type=voluntary copy_kind=none "
            "status=0 device=-1 nested=0 count=3 sum=30 min=5 max=20 size_bytes=0 buckets=1:2,3:1"
        ),
    ]


def test_counters_are_listed_by_name():
    """A counter's name says whether it is a loss."""
    [line] = describe(Counters(5, tuple(range(16))))

    assert line.startswith("counters 5 0/0 lost_ring_full=0 lost_series_full=1 ")
    assert line.endswith(" spans_chosen=14 stalls_chosen=15")


def test_facts_are_compact_json():
    """A JSON body is shown as JSON, so that it can be cut out and parsed."""
    event = ProcessSeen(5, 7, 10, {"exe": "/bin/é", "command_args": ["a", "b c"]})

    assert list(describe(event)) == [
        'process 5 10/0 program_ktime_ns=7 facts={"command_args":["a","b c"],"exe":"/bin/\\u00e9"}'
    ]


def test_a_clock_and_a_device_have_no_surprises():
    """Kinds without a thread show 0/0, and a UUID is hexadecimal."""
    assert list(describe(Clock(5, 6))) == ["clock 5 0/0 unix_ns=6"]
    assert list(describe(Device(5, 7, 10, 11, 0, b"\x01" * 16, "H100"))) == [
        'device 5 10/11 program_ktime_ns=7 device=0 uuid=01010101010101010101010101010101 name="H100"'
    ]


@given(st.text(), st.text())
def test_no_name_can_steer_a_terminal(comm, path):
    """Whatever a thread or file calls itself, the line is printable ASCII, and one line."""
    for event in (
        Exec(1, 2, 3, 4, 5, 6, 7, 0, comm, path),
        ProcessSeen(1, 2, 3, {"comm": comm, path: 1}),
        CALL._replace(comm=comm),
        UserStack(1, 2, (Frame(comm, path, comm, 1, path),), True, comm, path),
    ):
        [line] = describe(event)
        assert line.isascii()
        assert line.isprintable()
