"""Makes the chain of a call or a gap, if it is an effect."""

from collections.abc import Iterable

from otel_gpu.enrich.activities import CallActivity, GapActivity, OpenCallActivity
from otel_gpu.enrich.identity.identities import CallStack
from otel_gpu.explain.causes import Causes
from otel_gpu.explain.chains import Cause, Chain, stack_of_cause
from otel_gpu.explain.devices.device_causes import DeviceCauses
from otel_gpu.explain.devices.fabric_causes import FabricCauses
from otel_gpu.explain.effects import Candidate, Effects
from otel_gpu.explain.exits import ProcessExits
from otel_gpu.explain.kinds import CauseKind, EffectKind, Severity
from otel_gpu.explain.settings import Settings
from otel_gpu.explain.severity import judge, lost_to_host_ns
from otel_gpu.wire.probe_table import Api


class ChainBuilder:
    """Joins an effect to its causes."""

    def __init__(
        self,
        effects: Effects,
        causes: Causes,
        device_causes: DeviceCauses,
        fabric: FabricCauses,
        exits: ProcessExits,
        settings: Settings,
    ) -> None:
        self._effects = effects
        self._causes = causes
        self._device_causes = device_causes
        self._fabric = fabric
        self._exits = exits
        self._settings = settings

    def explain(self, candidate: Candidate) -> Chain | None:
        """Return the chain of an effect; None: not an effect, or too small to matter."""
        judged = self._effects.judge(candidate)
        if judged is None:
            return None
        effect, subject = judged
        event = candidate.activity.event
        life_ns = self._exits.life_ns((event.pid, event.program_ktime_ns))
        # An effect that cannot matter needs no causes.
        least = (
            Severity.MEDIUM if effect.excess_ns >= self._settings.medium_lost_ns else Severity.LOW
        )
        if life_ns is not None and not self._effects.matters(
            effect=effect, subject=subject, severity=least, life_ns=life_ns
        ):
            return None
        if effect.kind == EffectKind.KILLED_CALL:
            # How long the call had lasted is not what is wrong.
            name = f"{effect.kind}-{event.pid}-{event.tid}-{event.start_ktime_ns}"
            return Chain(
                id=name,
                effect=effect._replace(excess_ns=0),
                causes=(),
                unexplained_ns=0,
                severity=Severity.HIGH,
            )
        causes, unexplained_ns = self._causes.find(subject, candidate.stalls)
        if effect.kind == EffectKind.FAILED_CALL:
            fault = self._device_causes.failed_of(effect, subject.device)
            causes = causes if fault is None else (fault, *causes)
        causes += self._fabric.find(effect, _api_of(candidate.activity), causes)
        if effect.kind == EffectKind.SLOW_GAP:
            effect = effect._replace(stack=_worked_at(causes))
        severity = judge(
            lost_to_host_ns=lost_to_host_ns(effect, causes),
            excess_ns=effect.excess_ns,
            window_ns=0,
            settings=self._settings,
        ).severity
        if effect.kind == EffectKind.NETWORK_EVENT:
            severity = Severity.HIGH
        if life_ns is not None and not self._effects.matters(
            effect=effect, subject=subject, severity=severity, life_ns=life_ns
        ):
            return None
        chain_id = f"{effect.kind}-{event.pid}-{event.tid}-{event.start_ktime_ns}"
        return Chain(
            id=chain_id,
            effect=effect,
            causes=causes,
            unexplained_ns=unexplained_ns,
            severity=severity,
        )

    def explain_example(self, candidate: Candidate) -> Chain:
        """Return the chain of a call or gap that took no longer than usual."""
        effect, subject = self._effects.as_example(candidate)
        causes, unexplained_ns = self._causes.find(subject, candidate.stalls)
        if effect.kind == EffectKind.USUAL_GAP:
            effect = effect._replace(stack=_worked_at(causes))
        chain_id = f"{effect.kind}-{subject.pid}-{subject.tid}-{subject.start_ktime_ns}"
        return Chain(
            id=chain_id,
            effect=effect,
            causes=causes,
            unexplained_ns=unexplained_ns,
            severity=Severity.LOW,
        )


def _api_of(activity: CallActivity | GapActivity | OpenCallActivity) -> Api:
    return activity.next_api if isinstance(activity, GapActivity) else activity.api


def _worked_at(causes: Iterable[Cause]) -> CallStack | None:
    # Where a thread was in a gap that it mostly worked in; other gaps have waits with stacks.
    longest = max(causes, key=lambda cause: cause.time_ns, default=None)
    if longest is None or longest.kind != CauseKind.HOST_WORK:
        return None
    return stack_of_cause(longest)
