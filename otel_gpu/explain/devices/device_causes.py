"""
Why a device kept a thread waiting: its clocks were limited, or it had failed.

A wait for a device is no fault of the host, unless the device says otherwise of itself. NVML counts for
how long clocks were limited, and not when: so of a wait it is the share that they were limited of the
time between the readings around it. Of that, what is lost is as much as the clocks were slower: a device
that does not compute but reads its memory loses less. After an error of a device, nothing that is waited
for comes any more.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from otel_gpu.enrich.activities import CallActivity, DeviceFaultActivity, StallActivity
from otel_gpu.enrich.identity.identities import DeviceIdentity, Program, key_of
from otel_gpu.explain.chains import (
    Cause,
    CauseKind,
    Chain,
    Culprit,
    DeviceTrouble,
    Effect,
    EffectKind,
    Evidence,
    Severity,
)
from otel_gpu.explain.devices.xids import meaning_of
from otel_gpu.explain.intervals import CauseInterval
from otel_gpu.state.device_states import DeviceStates

_OF_DEVICES = frozenset({CauseKind.GPU_CLOCKS, CauseKind.GPU_FAULT})
_WAITS = frozenset({CauseKind.GPU_WAIT, CauseKind.GPU_BACKPRESSURE})
# A fault is read a moment after it was.
_READ_LATE_NS = 500_000_000
# Of calls that fail: how long before them a fault is still what they fail of.
_FAILS_NS = 10_000_000_000
# Less of a wait is not worth a word.
_LEAST_SHARE = 0.05


class Waiting(Protocol):
    """What is explained; see ``causes.Subject``."""

    @property
    def span(self) -> Evidence:
        """When it was."""

    @property
    def process(self) -> Program | None:
        """Whose time it was."""

    @property
    def device(self) -> DeviceIdentity | None:
        """The device that it was about, as far as that is known."""


class _Seen(NamedTuple):
    """What another thread did in a window, as far as its device goes."""

    span: Evidence
    process: Program | None
    device: DeviceIdentity | None


class DeviceCauses:
    """Asks what devices say of themselves."""

    def __init__(self, states: DeviceStates) -> None:
        self._states = states

    def split(self, subject: Waiting, pieces: list[CauseInterval]) -> list[CauseInterval]:
        """Return the pieces of an effect, with what the device is to blame for taken out of waits for it."""
        waited_ns = sum(piece.time_ns for piece in pieces if piece.kind in _WAITS)
        if not waited_ns or subject.process is None:
            return pieces
        uuid = self._states.find(subject.process.pid, subject.device)
        found = [*self._find_fault(subject, uuid, waited_ns)]
        left_ns = waited_ns - sum(piece.time_ns for piece in found)
        found += self._find_limit(subject, uuid, left_ns)
        return (
            [*_without(pieces, sum(piece.time_ns for piece in found)), *found] if found else pieces
        )

    def split_of(
        self,
        other: Culprit,
        span: Evidence,
        did: Sequence[CallActivity | StallActivity],
        pieces: list[CauseInterval],
    ) -> Iterator[CauseInterval]:
        """
        Yield the pieces of a window of a thread that was waited for, split likewise.

        Args:
            other: The thread.
            span: The window.
            did: Its calls and stalls in it, the calls first.
            pieces: What is known of it.
        """
        first = did[0] if did else None
        device = first.device if isinstance(first, CallActivity) else None
        for piece in self.split(_Seen(span, first.process if first else None, device), pieces):
            yield piece._replace(culprit=other) if piece.kind in _OF_DEVICES else piece

    def failed_of(self, effect: Effect, device: DeviceIdentity | None) -> Cause | None:
        """Return the fault that a failed call is due to, which takes no time; None: none is known."""
        end_unix_ns = effect.start_unix_ns + effect.duration_ns
        uuid = self._states.find(effect.process.pid, device)
        since_unix_ns = effect.start_unix_ns - _FAILS_NS
        fault = self._first(effect.process, uuid, since_unix_ns, end_unix_ns)
        return None if fault is None else _cause_of(fault, self._states)

    def chain_of(self, fault: DeviceFaultActivity, process: Program) -> Chain:
        """Return the chain of a fault of the process whose work it was."""
        name = f"{process.pid}-{fault.event.xid}-{fault.event.ktime_ns}"
        effect = Effect(
            EffectKind.DEVICE_FAULT,
            process,
            "",
            0,
            process.comm,
            fault.unix_ns,
            0,
            0,
            fault.trace_id,
            fault.span_id,
        )
        severity = meaning_of(fault.event.xid).severity
        cause = _cause_of(fault, self._states)
        return Chain(f"{effect.kind}-{name}", effect, (cause,), 0, severity)

    def _find_fault(self, subject: Waiting, uuid: str, waited_ns: int) -> Iterable[CauseInterval]:
        span, process = subject.span, subject.process
        if process is None:
            return
        fault = self._first(process, uuid, span.start_unix_ns, span.end_unix_ns)
        if fault is not None:
            # It was read a moment later than it was, so that there is always some time after it.
            after_ns = max(1, span.end_unix_ns - max(span.start_unix_ns, fault.unix_ns))
            yield CauseInterval(
                CauseKind.GPU_FAULT,
                min(waited_ns, after_ns),
                None,
                _evidence_of(fault, span.end_unix_ns),
                trouble=_trouble_of(fault, self._states),
            )
            return
        count = self._states.uncorrected(uuid, span.start_unix_ns, span.end_unix_ns)
        if count:
            evidence = span._replace(id=f"device-{span.id}", kind="device", reason="ecc")
            trouble = DeviceTrouble(uuid, uncorrected=count)
            yield CauseInterval(CauseKind.GPU_FAULT, waited_ns, None, evidence, trouble=trouble)

    def _first(
        self, process: Program, uuid: str, start_unix_ns: int, end_unix_ns: int
    ) -> DeviceFaultActivity | None:
        """Return the first fault in a window that a process has to pay for."""
        end_unix_ns += _READ_LATE_NS
        for fault in self._states.faults(process, uuid, start_unix_ns, end_unix_ns):
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
        evidence = span._replace(id=f"device-{span.id}", kind="device", reason=found.reason)
        yield CauseInterval(CauseKind.GPU_CLOCKS, lost_ns, None, evidence, trouble=trouble)


def _without(pieces: list[CauseInterval], taken_ns: int) -> Iterable[CauseInterval]:
    """Yield pieces without so much of the waits for the device: the longest give first."""
    waits = [piece for piece in pieces if piece.kind in _WAITS]
    left: dict[int, int] = {}
    for piece in sorted(waits, key=lambda one: -one.time_ns):
        given_ns = min(taken_ns, piece.time_ns)
        taken_ns -= given_ns
        left[id(piece)] = piece.time_ns - given_ns
    for piece in pieces:
        yield piece._replace(time_ns=left[id(piece)]) if id(piece) in left else piece


def _cause_of(fault: DeviceFaultActivity, states: DeviceStates) -> Cause:
    evidence = _evidence_of(fault, fault.unix_ns)
    trouble = _trouble_of(fault, states)
    return Cause(CauseKind.GPU_FAULT, 0, 0.0, None, (evidence,), trouble=trouble)


def _trouble_of(fault: DeviceFaultActivity, states: DeviceStates) -> DeviceTrouble:
    bus_id = fault.event.bus_id
    return DeviceTrouble(states.uuid_at(bus_id) or bus_id, fault.event.xid)


def _evidence_of(fault: DeviceFaultActivity, end_unix_ns: int) -> Evidence:
    event = fault.event
    name = f"device_fault-{event.bus_id}-{event.xid}-{event.ktime_ns}"
    end_unix_ns = max(fault.unix_ns, end_unix_ns)
    reason = f"xid_{event.xid}"
    return Evidence(
        name, "device", fault.unix_ns, end_unix_ns, reason=reason, span_id=fault.span_id
    )
