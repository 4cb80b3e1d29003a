"""The chains of a document, bounded to the worst ones, and the culprits in them."""

from collections.abc import Iterable

from otel_gpu.enrich.identity.identities import Culprit, ProcessKey, key_of
from otel_gpu.explain.chains import Cause, Chain
from otel_gpu.report.document import CauseKind, CulpritTime, EffectKind

MAX_CHAINS = 1_000
MAX_CULPRITS = 10_000
MAX_HUNG = 4_096


class ChainRows:
    """
    Keeps up to ``MAX_CHAINS`` chains; culprit times are those of all.

    Attributes:
        left_out: Chains beyond the limit; complete after ``rows``.
    """

    def __init__(self) -> None:
        self._chains: dict[str, Chain] = {}
        self._hung: dict[tuple[ProcessKey, int, int], int] = {}
        self._culprit_times: dict[tuple[ProcessKey, Culprit, str], CulpritTime] = {}
        self.left_out = 0

    def add(self, chain: Chain) -> int:
        """Add a chain; return the nanoseconds lost in it and in no earlier one."""
        effect = chain.effect
        program = key_of(effect.process)
        self._chains[chain.id] = chain
        if len(self._chains) > 2 * MAX_CHAINS:
            self._leave_out()
        self._add_culprits(program, chain)
        # A hung call that returns makes a second chain: only the difference is lost.
        call = (program, effect.tid, effect.start_unix_ns)
        lost_ns = effect.excess_ns - self._hung.pop(call, 0)
        if effect.kind == EffectKind.HUNG_CALL and len(self._hung) < MAX_HUNG:
            self._hung[call] = effect.excess_ns
        return max(0, lost_ns)

    def rows(self) -> tuple[Chain, ...]:
        """Return the chains by start."""
        self._leave_out()
        return tuple(sorted(self._chains.values(), key=_chain_order))

    def culprit_times(self) -> tuple[CulpritTime, ...]:
        """Return the culprits, those that cost most time first."""
        return tuple(sorted(self._culprit_times.values(), key=_culprit_order))

    def _leave_out(self) -> None:
        if len(self._chains) <= MAX_CHAINS:
            return
        ranked = sorted(
            self._chains.values(),
            key=lambda chain: (not chain.is_failure, -chain.effect.excess_ns, chain.id),
        )
        self.left_out += len(ranked) - MAX_CHAINS
        self._chains = {chain.id: chain for chain in ranked[:MAX_CHAINS]}

    def _add_culprits(self, program: ProcessKey, chain: Chain) -> None:
        found: dict[tuple[Culprit, CauseKind], int] = {}
        _add_nested_culprits(found, chain.causes, frozenset())
        for (culprit, kind), time_ns in found.items():
            name = (program, culprit, kind)
            known = self._culprit_times.get(name)
            if known is None:
                if len(self._culprit_times) >= MAX_CULPRITS:
                    continue
                known = CulpritTime(
                    process=chain.effect.process, culprit=culprit, kind=kind, time_ns=0, effects=0
                )
            self._culprit_times[name] = known._replace(
                time_ns=known.time_ns + time_ns, effects=known.effects + 1
            )


def _add_nested_culprits(
    found: dict[tuple[Culprit, CauseKind], int],
    causes: Iterable[Cause],
    above: frozenset[tuple[Culprit, CauseKind]],
) -> None:
    # Adds each culprit's time in an effect; a nested cause with the same culprit and kind is part
    # of it.
    for cause in causes:
        names = {(culprit, cause.kind) for culprit in cause.culprits}
        for name in names - above:
            found[name] = found.get(name, 0) + cause.time_ns
        _add_nested_culprits(found, cause.via, above | names)


def _chain_order(chain: Chain) -> tuple[int, str]:
    return chain.effect.start_unix_ns, chain.id


def _culprit_order(culprit_time: CulpritTime) -> tuple[int, int, int, int, str]:
    return (
        -culprit_time.time_ns,
        culprit_time.process.pid,
        culprit_time.culprit.pid,
        culprit_time.culprit.tid,
        culprit_time.kind,
    )
