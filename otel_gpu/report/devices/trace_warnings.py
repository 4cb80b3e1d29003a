"""Sentences on problems of a trace."""

from collections import Counter
from collections.abc import Mapping

from otel_gpu.explain.traces.device_use import launches_of
from otel_gpu.explain.traces.trace_health import Fault, TraceProblem
from otel_gpu.formatting.units import counted
from otel_gpu.report.wording.formats import format_duration, format_share
from otel_gpu.wire.device_activity import DeviceTrace


def gate_line(trace: DeviceTrace, one: TraceProblem) -> str:
    """Return a problem of a trace, and what is not known because of it."""
    duration = format_duration(one.amount)
    share = format_share(one.share)
    is_one = one.amount == 1
    text = _GATES[one.fault].format(
        one.amount,
        whole=one.whole,
        share=share,
        duration=duration,
        activities=counted(one.amount, "activities"),
        are="is" if is_one else "are",
        begin="begins" if is_one else "begin",
    )
    if one.fault is Fault.REJECTED:
        text += f" ({_rejected(trace)})"
    if not one.is_fatal:
        return text
    unknown = "causes and verdict are unknown" if one.hides_causes else "the verdict is unknown"
    return f"{text}: {unknown}"


def describe_no_device(trace: DeviceTrace) -> str:
    """Return why a trace has no device rows."""
    launches = launches_of(trace)
    if launches:
        made = ", ".join(f"{name} {times:,}" for name, times in launches.most_common(_MOST_NAMES))
        return (
            f"{trace.source}: launches were recorded ({made}), but no activity of a device: the recorder "
            "lost it, so there are no figures of devices."
        )
    if trace.rejected:
        return (
            f"{trace.source}: it has no activity of a device that could be read, so there are no figures of devices "
            f"({_rejected(trace)})."
        )
    return (
        f"{trace.source}: it has no activity of a device, so there are no figures of devices. Was "
        "ProfilerActivity.CUDA among the activities of the profiler?"
    )


def _rejected(trace: DeviceTrace) -> str:
    ranked = Counter(trace.rejected).most_common(_MOST_NAMES)
    return ", ".join(f"{reason}: {count:,}" for reason, count in ranked)


_MOST_NAMES = 3
_GATES: Mapping[Fault, str] = {
    Fault.REJECTED: "{share} of the events of the file could not be read",
    Fault.LAUNCHED_BEFORE: (
        "{:,} {activities} at the front, launched before anything was recorded, {are} left out"
    ),
    Fault.OUTSIDE_STEPS: (
        "{:,} {activities} before the first step or after the last one {are} left out"
    ),
    Fault.MIGRATIONS: (
        "pages of managed memory moved by no launch ({:,} copies): what they moved for is not known"
    ),
    Fault.LOST_LAUNCHES: "nothing was recorded of what {:,} of {whole:,} launches did ({share})",
    Fault.LOST_GRAPHS: "nothing was recorded of what launches of graphs did: {:,} of them",
    Fault.UNEXPLAINED_IDLE: (
        "{share} of the window is idle, and of what was launched then something is missing"
    ),
    Fault.NO_LAUNCHES: "no call that launched anything was recorded",
    Fault.OVERLAPPING: (
        "activities of one stream overlap for {duration}, {share} of the time of all of them"
    ),
    Fault.WRONG_DURATIONS: (
        "durations of the file are wrong: before some activities end, up to {whole:,} later ones of their stream begin "
        "and end. {:,} of such are left out, and there are no steps"
    ),
    Fault.DISORDERED: (
        "the work of {:,} of {whole:,} launches begins before that of an earlier one to the same stream ({share}), "
        "which cannot be. Times or streams of the file are wrong, and there are no steps"
    ),
    Fault.CLOCKS: (
        "{:,} {activities} {begin} before the call of the launch ({share}): the clocks of host and "
        "device do not agree"
    ),
    Fault.STACKS: "stacks were recorded (with_stack), which slows the host down",
    Fault.OVERHEAD: "the profiler itself took {duration} of the host",
    Fault.FEW_STEPS: "fewer than two whole steps: how much they vary is not known",
    Fault.NO_STEPS: "nothing in the file says where steps begin: all of it is one window",
    Fault.SEVERAL_DEVICES: "one process used {:,} devices",
    Fault.LITTLE_WORK: "the device worked for {duration} only",
    Fault.SHORT_WINDOW: (
        "all that the device did lies within {duration}, {share} of what was recorded"
    ),
}
