"""
Algorithm searches of cuDNN: a call of a convolution that ran many different kernels.

Usually a convolution is one kernel, or with conversions and transforms up to five.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from otel_gpu.state.traces.device_steps import TracedStep
from otel_gpu.state.traces.device_time import DeviceTimeline
from otel_gpu.state.traces.host_time import HostTime
from otel_gpu.state.traces.launches import NO_ROW
from otel_gpu.wire.device_activity import DeviceTrace

KERNELS: Final = 6
"""Different kernels from which on a call is a search."""

_CONVOLVES = re.compile(
    r"aten::(?:cudnn|miopen)_convolution\w*|aten::_?convolution\w*|aten::conv\w*"
)


class Searches(NamedTuple):
    """
    Calls that tried algorithms out.

    ``device_ns`` is all their time on the device, ``shapes`` the number of different inputs, and
    ``steps`` the number of steps with such calls.
    """

    times: int
    device_ns: int
    shapes: int
    steps: int


def find_searches(
    trace: DeviceTrace,
    timeline: DeviceTimeline,
    links: Sequence[int],
    host_time: HostTime,
    steps: Sequence[TracedStep],
) -> Searches:
    """Return the searches on one device; threads were walked through before."""
    convolves = {number for number, name in enumerate(trace.names) if _CONVOLVES.fullmatch(name)}
    host, activities = trace.host, trace.activities
    ran: dict[int, set[int]] = {}
    taken_ns: dict[int, int] = {}
    for row in timeline.rows if convolves else ():
        owner = NO_ROW if links[row] == NO_ROW else host_time.owners[links[row]]
        if owner != NO_ROW and host.names[owner] in convolves:
            ran.setdefault(owner, set()).add(activities.names[row])
            taken_ns[owner] = taken_ns.get(owner, 0) + activities.durations_ns[row]
    found = [owner for owner, names in ran.items() if len(names) >= KERNELS]
    starts_ns = sorted(host.starts_ns[owner] for owner in found)
    return Searches(
        times=len(found),
        device_ns=sum(taken_ns[owner] for owner in found),
        shapes=len({(host.names[owner], host.shapes[owner]) for owner in found}),
        steps=sum(any(step.start_ns <= at < step.end_ns for at in starts_ns) for step in steps),
    )
