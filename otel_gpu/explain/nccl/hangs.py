"""Hangs: collectives that do not end, without a call that hangs."""

from collections.abc import Iterator

from otel_gpu.enrich.identity.identities import ProcessKey, key_of
from otel_gpu.explain import rules
from otel_gpu.explain.causes import Causes, Subject
from otel_gpu.explain.chains import Chain, Evidence
from otel_gpu.explain.incidents import Incidents, OpenKey
from otel_gpu.explain.kinds import CauseKind, EvidenceKind
from otel_gpu.explain.nccl.collectives import Collectives, Hang
from otel_gpu.explain.settings import Settings
from otel_gpu.explain.severity import judge, lost_to_host_ns


class Hangs:
    """Keeps ranks that hang in a collective among the incidents while they hang."""

    def __init__(
        self, collectives: Collectives, causes: Causes, incidents: Incidents, settings: Settings
    ) -> None:
        self._collectives = collectives
        self._causes = causes
        self._incidents = incidents
        self._settings = settings
        self._known: dict[OpenKey, tuple[Hang, Chain]] = {}

    def find(self, unix_ns: int) -> Iterator[Chain]:
        """Yield new hangs at a time, and end those that are over."""
        if not self._collectives.communicators:
            return
        found: dict[OpenKey, tuple[Hang, Chain]] = {}
        for hang in self._collectives.hangs(unix_ns):
            if len(found) < self._settings.max_incidents:
                found[hang.key] = hang, self._explain(hang)
        for key in self._known.keys() - found.keys():
            hang, chain = self._known[key]
            self._incidents.forget_hung(key)
            # A device that took long is not reported once it is done; a late rank still is.
            if not (hang.is_over and chain.causes[0].kind == CauseKind.COLLECTIVE_STUCK):
                self._incidents.add(chain)
        for key, (_, chain) in found.items():
            self._incidents.add_hung(key, chain)
            if key not in self._known:
                yield chain
        self._known = found

    def leave_to_call(self, program: ProcessKey) -> None:
        """
        Forget the hangs of a process: a call that hangs in one reports the same, for the same
        thread.
        """
        for key, (hang, _) in list(self._known.items()):
            if key_of(hang.effect.process) == program:
                del self._known[key]
                self._incidents.forget_hung(key)

    def _explain(self, hang: Hang) -> Chain:
        effect, pid = hang.effect, hang.effect.process.pid
        end_ktime_ns = hang.start_ktime_ns + hang.duration_ns
        end_unix_ns = effect.start_unix_ns + hang.duration_ns
        name = f"{effect.kind}-{hang.group.id:x}-{hang.number}-{pid}"
        span = Evidence(
            id=name,
            kind=EvidenceKind.COLLECTIVE,
            start_unix_ns=effect.start_unix_ns,
            end_unix_ns=end_unix_ns,
        )
        subject = Subject(
            pid=pid,
            tid=effect.tid,
            start_ktime_ns=hang.start_ktime_ns,
            end_ktime_ns=end_ktime_ns,
            blocked_ns=0,
            run_queue_ns=0,
            place=rules.Place.SYNCHRONIZE,
            usual_ns=0,
            span=span,
            program_ktime_ns=effect.process.program_ktime_ns,
            is_open=True,
        )
        causes, unexplained_ns = self._causes.find(subject, ())
        severity = judge(
            lost_to_host_ns=lost_to_host_ns(effect, causes),
            excess_ns=effect.excess_ns,
            window_ns=0,
            settings=self._settings,
        ).severity
        return Chain(
            id=name, effect=effect, causes=causes, unexplained_ns=unexplained_ns, severity=severity
        )
