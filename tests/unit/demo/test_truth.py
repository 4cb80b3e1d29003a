"""What a scenario prints, read back."""

from otel_gpu.demo.truth import describe
from tests.scenarios.truth import InjectedCause, InjectedEffect, InjectedPlace, Truth, read_truth

LINE = (
    '{"scenario": "starved-loader", "pid": 20, "tid": 20, "monotonic_ns": 5000, '
    '"unix_ns": 1700000000000005000, "effects": [{"kind": "slow_gap", "api": '
    '"cudaLaunchKernel", "start_ns": 1000, "end_ns": 41001000, "causes": [{"kind": "ipc", '
    '"time_ns": 40900000, "pid": 22, "tid": 23, "via": {"kind": "run_queue", "time_ns": '
    '40000000, "pid": 21}}]}]}'
)
TRUTH = Truth(
    scenario="starved-loader",
    pid=20,
    tid=20,
    ktime_ns=5000,
    unix_ns=1700000000000005000,
    effects=(
        InjectedEffect(
            kind="slow_gap",
            api="cudaLaunchKernel",
            start_ktime_ns=1000,
            end_ktime_ns=41001000,
            causes=(
                InjectedCause(
                    kind="ipc",
                    time_ns=40900000,
                    pid=22,
                    tid=23,
                    via=InjectedCause("run_queue", 40000000, 21, 21, None),
                ),
            ),
        ),
    ),
)


def test_a_line_is_read() -> None:
    """A culprit without a thread is a process of one thread."""
    assert read_truth(LINE) == TRUTH


def test_kernel_time_becomes_unix_time() -> None:
    """The pair of clocks in the line says how far apart they are."""
    assert TRUTH.to_unix_ns(6000) == 1700000000000006000


def test_what_was_done_is_said_in_words() -> None:
    """One line per effect, with who did it and who did it to them."""
    (line,) = describe(LINE)

    assert line == (
        "1. slow gap of 41.0 ms (cudaLaunchKernel): ipc 40.9 ms by thread 23 of process 22, "
        "which had run_queue 40.0 ms by thread 21 of process 21"
    )


def test_a_place_is_read_and_said() -> None:
    """Where somebody worked; the last of the lines stands for them."""
    place = '{"function": "tokenise", "file": "busy.py", "first_line": 47, "last_line": 49}'
    line = LINE.replace('"pid": 21}', f'"pid": 21, "place": {place}}}')

    (words,) = describe(line)
    (cause,) = read_truth(line).effects[0].causes

    assert words.endswith("by thread 21 of process 21 in tokenise busy.py:49")
    assert cause.place is None
    assert cause.via is not None
    assert cause.via.place == InjectedPlace("tokenise", "busy.py", 47, 49)


def test_nothing_done_is_said() -> None:
    """The clean run has no effects to list."""
    assert list(describe('{"effects": []}')) == ["nothing was done to it"]
