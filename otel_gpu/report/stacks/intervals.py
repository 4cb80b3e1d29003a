"""
Intervals: time that threads spent at one place of their programs, on or off a CPU.

A sample is an interval on a CPU, as long as the time that it represents. A stall is up to two:
blocked, then ready and waiting for a CPU. Each has one stack from the process to the kernel: the
program's frames, the CUDA call, the kernel's functions, and for a wait its reason in brackets.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.activities import SampleActivity, StallActivity
from otel_gpu.enrich.identity.identities import CallStack
from otel_gpu.enrich.stack_text import frame_type
from otel_gpu.report.document import Window
from otel_gpu.wire.frames import Frame, FrameType, PythonStatus, UnwindMethod
from otel_gpu.wire.probe_table import API_BY_NUMBER, unknown_api
from otel_gpu.wire.thread_states import ThreadState

ON_CPU, RUN_QUEUE, OFF_CPU = ThreadState.ON_CPU, ThreadState.RUN_QUEUE, "off_cpu"
_UNKNOWN = CallStack(
    id=0,
    frames=(Frame(FrameType.CUT, "stack not known"),),
    complete=False,
    native=UnwindMethod.NONE,
    python=PythonStatus.NONE,
    place=None,
)

_IN_CALL = (wire.CONTEXT_CALL, wire.CONTEXT_SYNCHRONIZE)
# Suffixes of exported driver symbols: cuMemAlloc_v2, cuLaunchKernel_ptsz.
_VARIANT = re.compile(r"(_v\d+)?(_pt(sz|ds))?")


class StackInterval(NamedTuple):
    """
    One interval.

    Attributes:
        name: ``on_cpu``, the reason of a block, ``run_queue``, or ``off_cpu`` if the reason is
            unknown.
        time_ns: Its length, or the time that it represents.
        api: The CUDA API that the thread was in; empty: none.
        functions: Of the kernel, innermost first.
        stack: The thread's user stack; None: not known.
    """

    name: str
    time_ns: int
    api: str
    functions: tuple[str, ...]
    stack: CallStack | None

    def whole(self) -> CallStack:
        """Return the whole stack; its id is the user stack's, 0 if that is not known."""
        inner = [Frame(FrameType.KERNEL, function) for function in self.functions]
        if self.name != ON_CPU:
            inner.insert(0, Frame(FrameType.WAIT, f"[{self.name}]"))
        stack = self.stack or _UNKNOWN
        return stack._replace(frames=(*inner, *_with_call(stack.frames, self.api)))


def intervals_of(
    activity: SampleActivity | StallActivity, window: Window
) -> Iterator[StackInterval]:
    """Yield an activity's intervals, cut to a window."""
    if isinstance(activity, SampleActivity):
        yield from _of_sample(activity, window)
    else:
        yield from _of_stall(activity, window)


def _of_sample(activity: SampleActivity, window: Window) -> Iterator[StackInterval]:
    event = activity.event
    if event.weight_ns > 0 and window.overlaps(activity.unix_ns, activity.unix_ns):
        api = _name(event.api) if event.context in _IN_CALL else ""
        yield StackInterval(
            name=ON_CPU,
            time_ns=event.weight_ns,
            api=api,
            functions=activity.functions,
            stack=activity.stack,
        )


def _of_stall(activity: StallActivity, window: Window) -> Iterator[StackInterval]:
    event = activity.event
    start, runnable, end = activity.start_unix_ns, activity.runnable_unix_ns, activity.end_unix_ns
    blocked = activity.reason or OFF_CPU
    api = _name(event.call_api)
    for name, begin, until in ((blocked, start, runnable), (RUN_QUEUE, runnable, end)):
        time_ns = _inside(window, begin, until)
        if time_ns > 0:
            yield StackInterval(
                name=name,
                time_ns=time_ns,
                api=api,
                functions=activity.functions,
                stack=activity.stack,
            )


def _inside(window: Window, begin_unix_ns: int, end_unix_ns: int) -> int:
    begin = max(begin_unix_ns, window.start_unix_ns or 0)
    end = end_unix_ns if window.end_unix_ns is None else min(end_unix_ns, window.end_unix_ns)
    return end - begin


def _name(number: int) -> str:
    if not number:
        return ""
    return (API_BY_NUMBER.get(number) or unknown_api(number)).name


def _with_call(frames: tuple[Frame, ...], api: str) -> tuple[Frame, ...]:
    # Inserts the CUDA call outside of the library's own frames, if it is missing.
    if not api or any(_is_call(frame.function, api) for frame in frames):
        return frames
    own = [place for place, frame in enumerate(frames) if frame_type(frame) == FrameType.CUDA]
    place = own[-1] + 1 if own else 0
    return (*frames[:place], Frame(FrameType.CUDA, api), *frames[place:])


def _is_call(function: str, api: str) -> bool:
    return function.startswith(api) and _VARIANT.fullmatch(function, len(api)) is not None
