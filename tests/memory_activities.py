"""Stories about device memory: readings whose holders are lines of one program."""

from tests import activities
from tests.activities import H100, SECOND, holder, line_stack, totals

MIB = 1 << 20
WEIGHTS, CACHE, STEP = (("build", 12), ("remember", 61), ("forward", 40))


def held(place, live, allocated=None, blocks=1):
    """A holder: its key, what it holds, and where that was allocated."""
    function, line = place
    known = holder(live, blocks if live else 0, allocated or live, blocks)
    return line, known, line_stack(line, function)


def blocks(process, at_s, *holders, device=0, identity=H100, **values):
    """A reading of one device; what it allocated is what holders hold, if not said otherwise."""
    live = sum(one.live_bytes for _, one, _ in holders)
    values = {"last_ktime_ns": round(at_s * SECOND)} | values
    said = totals(values.pop("allocated_bytes", live), **values)
    return activities.blocks(process, at_s, said, holders, number=device, device=identity)
