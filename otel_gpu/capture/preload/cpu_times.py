"""
Divides the CPU time of preloaded programs among their calls and the gaps between calls.

The kernel side sees such a thread when it leaves the CPU, not when its calls begin and end. So it does not
know in which calls the CPU time was spent. The preload library measures the duration of calls and gaps by
the clock. That duration minus the time off the CPU, which the kernel side has by call and gap, is the CPU
time.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from otel_gpu import wire
from otel_gpu.capture.preload.shared_memory import PreloadReading
from otel_gpu.wire.agent_records import Entry
from otel_gpu.wire.probe_table import API_BY_NUMBER

Place = tuple[int, int]
"""In a call (1) or in the gap after one (0), and the number of the call's API."""

_GAP, _CALL = 0, 1
_KEY = wire.TIMES_KEY.fields
_STATE, _CONTEXT, _API = map(_KEY.index, ("state", "context", "api"))
_VALUE = wire.TIMES.fields
_TIME, _ENDED = map(_VALUE.index, ("time_ns", "ended_ns"))
_CONTEXTS = {wire.CONTEXT_GAP: _GAP, wire.CONTEXT_CALL: _CALL, wire.CONTEXT_SYNCHRONIZE: _CALL}


class PreloadTimes:
    """Divides the CPU time of one program at each reading."""

    def __init__(self, before: PreloadReading | None) -> None:
        self._before = {} if before is None else spent(before, 0)
        self._reported_ns: dict[bytes, int] = {}

    def divide(
        self, entries: Iterable[Entry], reading: PreloadReading, booked_ktime_ns: tuple[int, int]
    ) -> list[Entry]:
        """
        Return time-accounting entries with the CPU time by call and gap.

        Args:
            entries: The kernel side's entries of the program.
            reading: The program's shared memory.
            booked_ktime_ns: When adding the open intervals of all threads began and ended.
        """
        kept: list[Entry] = []
        on_cpu: dict[bytes, tuple[int, ...]] = {}
        left_ns: dict[Place, int] = defaultdict(int)
        # Until the first time, every thread's time is in the entries. Reported times never decrease.
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
                # A call that only probes see; in the preload library it is part of a gap.
                kept.append((key, value))
            elif fields[_STATE] == wire.STATE_ON_CPU:
                on_cpu[key] = values
                pool_ns += values[_TIME]
            else:
                kept.append((key, value))
                left_ns[in_call, fields[_API]] -= values[_TIME]
        if not on_cpu:
            return kept
        unread_ns = ended_ktime_ns - begun_ktime_ns if reading.threads else 0
        shares = _fit(left_ns, pool_ns, unread_ns)
        return [*kept, *self._entries(on_cpu, shares)]

    def _entries(
        self, on_cpu: Mapping[bytes, tuple[int, ...]], shares: Mapping[Place, int]
    ) -> Iterator[Entry]:
        some = next(iter(on_cpu))
        wanted = dict.fromkeys([*on_cpu, *self._reported_ns], 0)
        wanted |= {_key_of(some, place): time_ns for place, time_ns in shares.items() if time_ns}
        template = on_cpu[some]
        for key, time_ns in wanted.items():
            total_ns = max(time_ns, self._reported_ns.get(key, 0))
            self._reported_ns[key] = total_ns
            values = list(on_cpu.get(key, template))
            values[_TIME] = values[_ENDED] = total_ns
            yield key, wire.TIMES.pack(*values)


def spent(reading: PreloadReading, ktime_ns: int) -> dict[Place, int]:
    """Return the time that threads spent in calls and gaps until ``ktime_ns``, on and off the CPU."""
    times: dict[Place, int] = defaultdict(int)
    for api, (call_ns, gap_ns) in reading.places.items():
        times[_CALL, api] += call_ns
        # Threads that only query, such as watchdogs, have no gaps.
        if gap_ns:
            times[_GAP, api] += gap_ns
    for thread in reading.threads:
        if thread.open_api:
            times[_CALL, thread.open_api] += max(0, ktime_ns - thread.open_ktime_ns)
        elif thread.last_return_ktime_ns:
            times[_GAP, thread.last_api] += max(0, ktime_ns - thread.last_return_ktime_ns)
    return times


def _fit(left_ns: Mapping[Place, int], pool_ns: int, unread_ns: int) -> dict[Place, int]:
    # The shares have to add up to the measured CPU time (pool_ns). They differ because both were read
    # at different times, because threads that ended had a gap until then, and because gaps contain calls
    # that only probes see. So a difference is added to or taken from gaps first. Up to unread_ns can be
    # missing: it passed while open intervals were added, and the next reading contains it.
    shares = {place: max(0, time_ns) for place, time_ns in left_ns.items()}
    order = sorted(shares, key=lambda place: (place[0], -shares[place]))
    excess_ns = sum(shares.values()) - pool_ns
    gaps = [place for place in order if place[0] == _GAP]
    if excess_ns < -unread_ns and gaps:
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
