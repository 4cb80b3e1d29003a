"""The chains of a document, the worst ones where there are many, and who is to blame in them."""

from collections.abc import Iterable

from otel_gpu.enrich.identity.identities import Culprit, ProcessKey, key_of
from otel_gpu.explain.chains import Cause, Chain
from otel_gpu.report.document import CauseKind, CulpritTime, EffectKind

MAX_CHAINS = 1_000
MAX_BLAMES = 10_000
MAX_HUNG = 4_096


class ChainRows:
    """
    Keeps up to ``MAX_CHAINS`` chains; blame is that of all.

    Attributes:
        left_out: How many chains found no room; complete when ``rows`` was called.
    """

    def __init__(self) -> None:
        self._chains: dict[str, Chain] = {}
        self._hung: dict[tuple[ProcessKey, int, int], int] = {}
        self._blames: dict[tuple[ProcessKey, Culprit, str], CulpritTime] = {}
        self.left_out = 0

    def add(self, chain: Chain) -> int:
        """Take in a chain; return the nanoseconds that were lost in it and in no earlier one."""
        effect = chain.effect
        image = key_of(effect.process)
        self._chains[chain.id] = chain
        if len(self._chains) > 2 * MAX_CHAINS:
            self._leave_out()
        self._blame(image, chain)
        # A call that hung is a chain again when it returns: only the difference is lost.
        call = (image, effect.tid, effect.start_unix_ns)
        lost_ns = effect.excess_ns - self._hung.pop(call, 0)
        if effect.kind == EffectKind.HUNG_CALL and len(self._hung) < MAX_HUNG:
            self._hung[call] = effect.excess_ns
        return max(0, lost_ns)

    def rows(self) -> tuple[Chain, ...]:
        """Return the chains, the first one first."""
        self._leave_out()
        return tuple(sorted(self._chains.values(), key=_chain_order))

    def blames(self) -> tuple[CulpritTime, ...]:
        """Return who is to blame, for the longest time first."""
        return tuple(sorted(self._blames.values(), key=_blame_order))

    def _leave_out(self) -> None:
        if len(self._chains) <= MAX_CHAINS:
            return
        ranked = sorted(
            self._chains.values(),
            key=lambda chain: (not chain.is_failure, -chain.effect.excess_ns, chain.id),
        )
        self.left_out += len(ranked) - MAX_CHAINS
        self._chains = {chain.id: chain for chain in ranked[:MAX_CHAINS]}

    def _blame(self, image: ProcessKey, chain: Chain) -> None:
        found: dict[tuple[Culprit, CauseKind], int] = {}
        _add_blames(found, chain.causes, frozenset())
        for (culprit, kind), time_ns in found.items():
            name = (image, culprit, kind)
            known = self._blames.get(name)
            if known is None:
                if len(self._blames) >= MAX_BLAMES:
                    continue
                known = CulpritTime(
                    process=chain.effect.process, culprit=culprit, kind=kind, time_ns=0, effects=0
                )
            self._blames[name] = known._replace(
                time_ns=known.time_ns + time_ns, effects=known.effects + 1
            )


def _add_blames(
    found: dict[tuple[Culprit, CauseKind], int],
    causes: Iterable[Cause],
    above: frozenset[tuple[Culprit, CauseKind]],
) -> None:
    """Add for how long who was waited for in an effect; what is a part of the same is in that."""
    for cause in causes:
        names = {(culprit, cause.kind) for culprit in cause.culprits}
        for name in names - above:
            found[name] = found.get(name, 0) + cause.time_ns
        _add_blames(found, cause.via, above | names)


def _chain_order(chain: Chain) -> tuple[int, str]:
    return chain.effect.start_unix_ns, chain.id


def _blame_order(blame: CulpritTime) -> tuple[int, int, int, int, str]:
    return -blame.time_ns, blame.process.pid, blame.culprit.pid, blame.culprit.tid, blame.kind
