"""
Where threads that count their own calls spent their time on a CPU.

The kernel side sees such a thread when it leaves the CPU, and not when its calls begin and end: what
it was in on the CPU before, the kernel side does not know. The preload library has that, by its clock. Without
the time off the CPU, which is in the account by call and gap, it is what was on a CPU there.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from otel_gpu import wire
from otel_gpu.capture.preload.shared_memory import PreloadReading
from otel_gpu.wire.agent_records import Entry
from otel_gpu.wire.probe_table import API_BY_NUMBER

Place = tuple[int, int]
"""What a moment belongs to: whether it is in a call (1) or a gap (0), and the API of that call."""

_GAP, _CALL = 0, 1
_KEY = wire.TIMES_KEY.fields
_STATE, _CONTEXT, _API = map(_KEY.index, ("state", "context", "api"))
_VALUE = wire.TIMES.fields
_TIME, _ENDED = map(_VALUE.index, ("time_ns", "ended_ns"))
_CONTEXTS = {wire.CONTEXT_GAP: _GAP, wire.CONTEXT_CALL: _CALL, wire.CONTEXT_SYNCHRONIZE: _CALL}


class PreloadTimes:
    """The account of one program, whose time on a CPU is divided anew each time it is read."""

    def __init__(self, before: PreloadReading | None) -> None:
        self._before = {} if before is None else spent(before, 0)
        self._said: dict[bytes, int] = {}

    def divide(
        self, entries: Iterable[Entry], reading: PreloadReading, booked_ktime_ns: tuple[int, int]
    ) -> list[Entry]:
        """
        Return the account of the program, as the kernel side would have seen it.

        Args:
            entries: What the kernel side has of the program.
            reading: Its shared memory.
            booked_ktime_ns: Between which moments the account was booked, one thread after another.
        """
        kept: list[Entry] = []
        on_cpu: dict[bytes, tuple[int, ...]] = {}
        left_ns: dict[Place, int] = defaultdict(int)
        # Until then each thread's time is booked; what is said is never taken back.
        begun_ktime_ns, ended_ktime_ns = booked_ktime_ns
        for place, time_ns in spent(reading, begun_ktime_ns).items():
            left_ns[place] = max(0, time_ns - self._before.get(place, 0))
        known_calls = {api for in_call, api in left_ns if in_call}
        pool_ns = 0
        for key, value in entries:
            fields, values = wire.TIMES_KEY.unpack(key), wire.TIMES.unpack(value)
            in_call = _CONTEXTS.get(fields[_CONTEXT])
            is_seen = in_call == _GAP or fields[_API] in known_calls
            if in_call is None:
                kept.append((key, value))
            elif not is_seen:
                # A call that only probes see: to the preload library, a part of a gap.
                kept.append((key, value))
            elif fields[_STATE] == wire.STATE_ON_CPU:
                on_cpu[key] = values
                pool_ns += values[_TIME]
            else:
                kept.append((key, value))
                left_ns[in_call, fields[_API]] -= values[_TIME]
        if not on_cpu:
            return kept
        unsaid_ns = ended_ktime_ns - begun_ktime_ns if reading.threads else 0
        shares = _fit(left_ns, pool_ns, unsaid_ns)
        return [*kept, *self._say(on_cpu, shares)]

    def _say(
        self, on_cpu: Mapping[bytes, tuple[int, ...]], shares: Mapping[Place, int]
    ) -> Iterator[Entry]:
        some = next(iter(on_cpu))
        wanted = dict.fromkeys([*on_cpu, *self._said], 0)
        wanted |= {_key_of(some, place): time_ns for place, time_ns in shares.items() if time_ns}
        template = on_cpu[some]
        for key, time_ns in wanted.items():
            self._said[key] = said_ns = max(time_ns, self._said.get(key, 0))
            values = list(on_cpu.get(key, template))
            values[_TIME] = values[_ENDED] = said_ns
            yield key, wire.TIMES.pack(*values)


def spent(reading: PreloadReading, ktime_ns: int) -> dict[Place, int]:
    """Return how long threads were in calls and gaps until a moment, by the clock."""
    times: dict[Place, int] = defaultdict(int)
    for api, (call_ns, gap_ns) in reading.places.items():
        times[_CALL, api] += call_ns
        # Who only asks, as a watchdog does, has no gaps.
        if gap_ns:
            times[_GAP, api] += gap_ns
    for thread in reading.threads:
        if thread.open_api:
            times[_CALL, thread.open_api] += max(0, ktime_ns - thread.open_ktime_ns)
        elif thread.last_return_ktime_ns:
            times[_GAP, thread.last_api] += max(0, ktime_ns - thread.last_return_ktime_ns)
    return times


def _fit(left_ns: Mapping[Place, int], pool_ns: int, unsaid_ns: int) -> dict[Place, int]:
    # Both were not read at the same moment, threads that ended had a gap until then, and there are
    # calls in gaps that only probes see: what is too much or missing is of gaps first. What passed
    # while the account was booked is of wherever the threads are, which the next reading says.
    shares = {place: max(0, time_ns) for place, time_ns in left_ns.items()}
    order = sorted(shares, key=lambda place: (place[0], -shares[place]))
    excess_ns = sum(shares.values()) - pool_ns
    gaps = [place for place in order if place[0] == _GAP]
    if excess_ns < -unsaid_ns and gaps:
        shares[gaps[0]] -= excess_ns
    for place in order if excess_ns > 0 else ():
        taken_ns = min(excess_ns, shares[place])
        shares[place] -= taken_ns
        excess_ns -= taken_ns
    return shares


def _key_of(some: bytes, place: Place) -> bytes:
    in_call, api = place
    waits = in_call and API_BY_NUMBER[api].family == wire.FAMILY_SYNCHRONIZE
    fields = wire.TIMES_KEY.named(some)
    fields["context"] = (
        wire.CONTEXT_SYNCHRONIZE if waits else wire.CONTEXT_CALL if in_call else wire.CONTEXT_GAP
    )
    return wire.TIMES_KEY.build(**{**fields, "api": api})
