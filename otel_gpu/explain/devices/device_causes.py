"""
Device causes: a device kept a thread waiting because its clocks were limited, or it had failed.

A wait for a device is not a fault of the host, unless the device reports otherwise. NVML counts how
long clocks were limited, and not when. So the share of a wait is that of the time between the
readings around it. The loss is as much as the clocks were slower; a device that reads its memory
instead of computing loses less. After an error of a device, no wait for it ends normally.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from otel_gpu.enrich.activities import CallActivity, DeviceFaultActivity, StallActivity
from otel_gpu.enrich.identity.identities import DeviceIdentity, Program, key_of
from otel_gpu.explain.chains import Cause, Chain, Culprit, DeviceTrouble, Effect, Evidence
from otel_gpu.explain.devices.xids import meaning_of
from otel_gpu.explain.intervals import CauseInterval
from otel_gpu.explain.kinds import CauseKind, EffectKind, EvidenceKind, Severity
from otel_gpu.state.device_states import DeviceStates

_OF_DEVICES = frozenset({CauseKind.GPU_CLOCKS, CauseKind.GPU_FAULT})
_WAITS = frozenset({CauseKind.GPU_WAIT, CauseKind.GPU_BACKPRESSURE})
# A fault is read a moment after it happened.
_READ_LATE_NS = 500_000_000
# How long after a fault calls still fail because of it.
_FAILS_NS = 10_000_000_000
# A smaller share of a wait is not reported.
_LEAST_SHARE = 0.05


class Waiting(Protocol):
    """A call or gap to explain; see ``causes.Subject``."""

    @property
    def span(self) -> Evidence:
        """Its interval."""

    @property
    def process(self) -> Program | None:
        """Its process; None: not known."""

    @property
    def device(self) -> DeviceIdentity | None:
        """The device that it was about; None: not known."""


class _Seen(NamedTuple):
    # What another thread did in a window, and with which device.

    span: Evidence
    process: Program | None
    device: DeviceIdentity | None


class DeviceCauses:
    """Attributes waits for devices to what the devices reported."""

    def __init__(self, states: DeviceStates) -> None:
        self._states = states

    def split(self, subject: Waiting, intervals: list[CauseInterval]) -> list[CauseInterval]:
        """Return intervals of an effect with the device's part separated from waits for it."""
        waited_ns = sum(interval.time_ns for interval in intervals if interval.kind in _WAITS)
        if not waited_ns or subject.process is None:
            return intervals
        uuid = self._states.find(subject.process.pid, subject.device)
        found = [*self._find_fault(subject, uuid, waited_ns)]
        left_ns = waited_ns - sum(interval.time_ns for interval in found)
        found += self._find_limit(subject, uuid, left_ns)
        return (
            [*_without(intervals, sum(interval.time_ns for interval in found)), *found]
            if found
            else intervals
        )

    def split_of(
        self,
        other: Culprit,
        span: Evidence,
        did: Sequence[CallActivity | StallActivity],
        intervals: list[CauseInterval],
    ) -> Iterator[CauseInterval]:
        """
        Yield the intervals of a window of a waited-for thread, split in the same way.

        Args:
            other: The thread.
            span: The window.
            did: Its calls and stalls in it, the calls first.
            intervals: What is known of it.
        """
        first = did[0] if did else None
        device = first.device if isinstance(first, CallActivity) else None
        for interval in self.split(
            _Seen(span, first.process if first else None, device), intervals
        ):
            yield interval._replace(culprit=other) if interval.kind in _OF_DEVICES else interval

    def failed_of(self, effect: Effect, device: DeviceIdentity | None) -> Cause | None:
        """Return the fault that made a call fail, which takes no time; None: none is known."""
        end_unix_ns = effect.start_unix_ns + effect.duration_ns
        uuid = self._states.find(effect.process.pid, device)
        since_unix_ns = effect.start_unix_ns - _FAILS_NS
        fault = self._first(
            process=effect.process, uuid=uuid, start_unix_ns=since_unix_ns, end_unix_ns=end_unix_ns
        )
        return None if fault is None else _cause_of(fault, self._states)

    def chain_of(self, fault: DeviceFaultActivity, process: Program) -> Chain:
        """Return the chain of a fault of the process whose work it was."""
        name = f"{process.pid}-{fault.event.xid}-{fault.event.ktime_ns}"
        effect = Effect(
            kind=EffectKind.DEVICE_FAULT,
            process=process,
            api="",
            tid=0,
            comm=process.comm,
            start_unix_ns=fault.unix_ns,
            duration_ns=0,
            excess_ns=0,
            trace_id=fault.trace_id,
            span_id=fault.span_id,
        )
        severity = meaning_of(fault.event.xid).severity
        cause = _cause_of(fault, self._states)
        return Chain(
            id=f"{effect.kind}-{name}",
            effect=effect,
            causes=(cause,),
            unexplained_ns=0,
            severity=severity,
        )

    def _find_fault(self, subject: Waiting, uuid: str, waited_ns: int) -> Iterable[CauseInterval]:
        span, process = subject.span, subject.process
        if process is None:
            return
        fault = self._first(
            process=process,
            uuid=uuid,
            start_unix_ns=span.start_unix_ns,
            end_unix_ns=span.end_unix_ns,
        )
        if fault is not None:
            # Faults are read a moment late, so there is always some time after them.
            after_ns = max(1, span.end_unix_ns - max(span.start_unix_ns, fault.unix_ns))
            yield CauseInterval(
                kind=CauseKind.GPU_FAULT,
                time_ns=min(waited_ns, after_ns),
                culprit=None,
                evidence=_evidence_of(fault, span.end_unix_ns),
                trouble=_trouble_of(fault, self._states),
            )
            return
        count = self._states.uncorrected(uuid, span.start_unix_ns, span.end_unix_ns)
        if count:
            evidence = span._replace(id=f"device-{span.id}", kind=EvidenceKind.DEVICE, reason="ecc")
            trouble = DeviceTrouble(uuid, uncorrected=count)
            yield CauseInterval(
                kind=CauseKind.GPU_FAULT,
                time_ns=waited_ns,
                culprit=None,
                evidence=evidence,
                trouble=trouble,
            )

    def _first(
        self, process: Program, uuid: str, start_unix_ns: int, end_unix_ns: int
    ) -> DeviceFaultActivity | None:
        # The first fault in a window that affects a process.
        end_unix_ns += _READ_LATE_NS
        for fault in self._states.faults(
            process=process, uuid=uuid, start_unix_ns=start_unix_ns, end_unix_ns=end_unix_ns
        ):
            meaning = meaning_of(fault.event.xid)
            is_own = fault.process is not None and key_of(fault.process) == key_of(process)
            if meaning.severity != Severity.LOW and (is_own or meaning.is_of_all):
                return fault
        return None

    def _find_limit(self, subject: Waiting, uuid: str, waited_ns: int) -> Iterable[CauseInterval]:
        span = subject.span
        found = self._states.limited(uuid, span.start_unix_ns, span.end_unix_ns)
        if found is None or found.lost_share < _LEAST_SHARE:
            return
        trouble = DeviceTrouble(
            uuid,
            reason=found.reason,
            clock_mhz=found.clock_mhz,
            clock_limit_mhz=found.clock_limit_mhz,
        )
        lost_ns = round(waited_ns * found.lost_share)
        evidence = span._replace(
            id=f"device-{span.id}", kind=EvidenceKind.DEVICE, reason=found.reason
        )
        yield CauseInterval(
            kind=CauseKind.GPU_CLOCKS,
            time_ns=lost_ns,
            culprit=None,
            evidence=evidence,
            trouble=trouble,
        )


def _without(intervals: list[CauseInterval], taken_ns: int) -> Iterable[CauseInterval]:
    # Subtracts time from the waits for the device, the longest first.
    waits = [interval for interval in intervals if interval.kind in _WAITS]
    left: dict[int, int] = {}
    for interval in sorted(waits, key=lambda one: -one.time_ns):
        given_ns = min(taken_ns, interval.time_ns)
        taken_ns -= given_ns
        left[id(interval)] = interval.time_ns - given_ns
    for interval in intervals:
        yield interval._replace(time_ns=left[id(interval)]) if id(interval) in left else interval


def _cause_of(fault: DeviceFaultActivity, states: DeviceStates) -> Cause:
    evidence = _evidence_of(fault, fault.unix_ns)
    trouble = _trouble_of(fault, states)
    return Cause(
        kind=CauseKind.GPU_FAULT,
        time_ns=0,
        share=0.0,
        culprit=None,
        evidence=(evidence,),
        trouble=trouble,
    )


def _trouble_of(fault: DeviceFaultActivity, states: DeviceStates) -> DeviceTrouble:
    bus_id = fault.event.bus_id
    return DeviceTrouble(states.uuid_at(bus_id) or bus_id, fault.event.xid)


def _evidence_of(fault: DeviceFaultActivity, end_unix_ns: int) -> Evidence:
    event = fault.event
    name = f"device_fault-{event.bus_id}-{event.xid}-{event.ktime_ns}"
    end_unix_ns = max(fault.unix_ns, end_unix_ns)
    reason = f"xid_{event.xid}"
    return Evidence(
        id=name,
        kind=EvidenceKind.DEVICE,
        start_unix_ns=fault.unix_ns,
        end_unix_ns=end_unix_ns,
        reason=reason,
        span_id=fault.span_id,
    )
