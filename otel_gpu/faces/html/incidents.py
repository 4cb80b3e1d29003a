"""Incidents: what went wrong, whose fault it was, what to do, and what that rests on."""

from collections import Counter
from collections.abc import Iterable, Sequence

from otel_gpu.explain.chains import Chain, Incident
from otel_gpu.faces.html.causes import cause_bar, cause_tree
from otel_gpu.faces.html.elements import Child, Markup, element, join, join_with
from otel_gpu.faces.html.evidence import evidence_table
from otel_gpu.faces.html.names import code_of, effect_of, name_of, process_of
from otel_gpu.faces.html.sentences import because, fault
from otel_gpu.faces.html.stacks import place_of, places_of, stacks_of_chain
from otel_gpu.faces.html.tables import Cell, Column, table
from otel_gpu.faces.html.waterfalls import waterfall
from otel_gpu.findings.words import count_of, describe_fault, format_duration, format_share

MOST_IN_FULL = 25
MOST_DRAWN = 4
MOST_EFFECTS = 32
_MOST_KINDS = 4
_SHOWN_SHARE = 0.05
_SEVERITIES = ("high", "medium", "low")
_NS_PER_S = 1e9
_ONE = {
    "slow_call": "a slow ",
    "slow_gap": "a slow gap before ",
    "hung_call": "a hanging ",
    "failed_call": "a failed ",
}
_TIMES = "\N{MULTIPLICATION SIGN}"


def incident_cards(incidents: Sequence[Incident], origin_unix_ns: int) -> list[Markup]:
    """A card for each incident, and a row for each of those that there are too many of."""
    cards = [
        _card(number, incident, origin_unix_ns)
        for number, incident in enumerate(incidents[:MOST_IN_FULL], 1)
    ]
    rest = list(enumerate(incidents, 1))[MOST_IN_FULL:]
    if rest:
        told = f"{count_of(len(rest), 'more incident')}, which lost less time"
        cards.append(element("h3", told))
        cards.append(_table(rest, origin_unix_ns))
    return cards


def severity_badge(severity: str) -> Markup:
    """How bad it is, in a word that is coloured."""
    return element("span", name_of(severity), class_=f"badge severity-{known(severity)}")


def known(severity: str) -> str:
    """The severity, or the least one for what is none."""
    return severity if severity in _SEVERITIES else _SEVERITIES[-1]


def sentence_of(incident: Incident) -> Markup:
    """Say what happened; where nothing is known, that."""
    if incident.chains and all(one.effect.kind == "failed_call" for one in incident.chains):
        return join("Calls returned an error")
    if not incident.causes:
        return join("What this time went to was not seen")
    return because(incident.causes[0])


def worst_of(chains: Iterable[Chain]) -> Chain | None:
    """The chain that lost most, of those that are worst."""
    rank = {name: place for place, name in enumerate(_SEVERITIES)}
    return min(
        chains,
        key=lambda chain: (rank.get(chain.severity, 3), -chain.effect.excess_ns, chain.id),
        default=None,
    )


def loss_of(incident: Incident) -> Markup:
    """Say who lost how much, in what."""
    processes = {
        (chain.effect.process.pid, chain.effect.process.image_ktime_ns): chain.effect.process
        for chain in incident.chains
    }
    return join(
        [
            join_with(", ", map(process_of, processes.values())),
            " lost ",
            element("b", format_duration(incident.lost_ns)),
            " in ",
            _effects(incident),
        ]
    )


def _effects(incident: Incident) -> Markup:
    kinds = Counter((describe_fault(one.effect), one.effect.api) for one in incident.chains)
    ranked = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    if incident.effects == 1 and incident.chains:
        effect = incident.chains[0].effect
        return join([_ONE.get(effect.kind, "one effect in "), code_of(effect.api)])
    if len(ranked) == 1:
        words, api = ranked[0][0]
        return join([f"{incident.effects:,} {_TIMES} {words} ", code_of(api)])
    told: list[Child] = [[f"{n:,} {_TIMES} {words} ", code_of(api)] for (words, api), n in ranked]
    if len(told) > _MOST_KINDS:
        told = [*told[:_MOST_KINDS], f"{len(told) - _MOST_KINDS:,} other kinds"]
    among = "among them " if incident.effects > len(incident.chains) else ""
    return join([f"{count_of(incident.effects, 'effect')}, {among}", join_with(", ", told)])


def _card(number: int, incident: Incident, origin_unix_ns: int) -> Markup:
    summary = element(
        "summary",
        element("h3", severity_badge(incident.severity), " ", sentence_of(incident)),
        element(
            "p",
            loss_of(incident),
            " ",
            element("span", _when(incident, origin_unix_ns), class_="quiet when"),
        ),
        cause_bar(incident.causes),
    )
    return element(
        "details",
        summary,
        _facts(incident),
        element("h4", "Why"),
        cause_tree(
            incident.causes,
            incident.unexplained_ns,
            _duration_of(incident),
            incident.chains[0].effect.stack if incident.chains else None,
        ),
        _moments(incident, origin_unix_ns),
        element("p", "Id: ", element("code", incident.id), class_="quiet id"),
        class_=f"card incident frame-{known(incident.severity)}",
        id=f"incident-{number}",
        open=number == 1,
    )


def _facts(incident: Incident) -> Markup:
    facts: list[Child] = []
    if incident.causes and incident.chains:
        pid = incident.chains[0].effect.process.pid
        facts.append(_fact("Whose fault", fault(incident.causes[0], pid)))
    if places := places_of(incident):
        facts.append(_fact("Where", places))
    if incident.advice:
        advice = [element("p", advice) for advice in incident.advice]
        facts.append(_fact("What to do", advice))
    return element("dl", facts, class_="facts")


def _fact(name: str, told: Child) -> Markup:
    return element("div", element("dt", name), element("dd", told))


def _moments(incident: Incident, origin_unix_ns: int) -> list[Child]:
    worst = worst_of(incident.chains)
    if worst is None:
        return []
    is_one = incident.effects == 1
    parts: list[Child] = [
        element("h4", "To the microsecond" if is_one else "The worst one, to the microsecond"),
        waterfall(worst),
        *stacks_of_chain(worst),
    ]
    others = sorted(
        (chain for chain in incident.chains if chain is not worst),
        key=lambda chain: (-chain.effect.excess_ns, chain.id),
    )
    if others:
        parts.append(_others(incident, others, origin_unix_ns))
    parts.append(evidence_table(worst))
    return parts


def _others(incident: Incident, others: Sequence[Chain], origin_unix_ns: int) -> Markup:
    drawn = [
        element(
            "details",
            element("summary", _line(chain, origin_unix_ns)),
            cause_tree(
                chain.causes,
                chain.unexplained_ns,
                chain.effect.duration_ns,
                chain.effect.stack,
            ),
            waterfall(chain),
        )
        for chain in others[: MOST_DRAWN - 1]
    ]
    listed = [
        element("li", _line(chain, origin_unix_ns))
        for chain in others[MOST_DRAWN - 1 : MOST_EFFECTS]
    ]
    more = incident.effects - 1 - min(len(others), MOST_EFFECTS)
    return element(
        "details",
        element("summary", f"{count_of(incident.effects - 1, 'more effect')} with these causes"),
        drawn,
        element("ul", listed, class_="plain") if listed else None,
        element("p", f"{more:,} more are not listed.", class_="quiet") if more > 0 else None,
    )


def _line(chain: Chain, origin_unix_ns: int) -> list[Child]:
    effect = chain.effect
    told: Child = "What it went to was not seen"
    if chain.causes:
        first = chain.causes[0]
        told = [because(first), f" ({format_share(first.share)})"]
    place = place_of(effect.stack)
    return [
        element("span", _offset(effect.start_unix_ns, origin_unix_ns), class_="at"),
        " ",
        effect_of(effect),
        [" at ", place] if place else None,
        f" took {format_duration(effect.duration_ns)}. ",
        told,
    ]


def _table(rest: Sequence[tuple[int, Incident]], origin_unix_ns: int) -> Markup:
    columns = (
        Column("severity", is_text=True),
        Column("what happened", is_text=True),
        Column("from"),
        Column("lost"),
        Column("effects"),
        Column("id", is_text=True),
    )
    rows = [
        (
            Cell(severity_badge(incident.severity), _SEVERITIES.index(known(incident.severity))),
            Cell([sentence_of(incident), ": ", loss_of(incident)]),
            Cell(_offset(incident.start_unix_ns, origin_unix_ns), incident.start_unix_ns),
            Cell(format_duration(incident.lost_ns), incident.lost_ns),
            Cell(f"{incident.effects:,}", incident.effects),
            Cell(element("code", incident.id)),
        )
        for _, incident in rest
    ]
    ids = [f"incident-{number}" for number, _ in rest]
    return table("Incidents that lost less time", columns, rows, ids=ids)


def _duration_of(incident: Incident) -> int:
    """What the shares of an incident are of, as far as a cause tells."""
    known = next((cause for cause in incident.causes if cause.share > 0), None)
    return round(known.time_ns / known.share) if known else 0


def _when(incident: Incident, origin_unix_ns: int) -> str:
    return (
        f"{_offset(incident.start_unix_ns, origin_unix_ns)} to "
        f"{_offset(incident.end_unix_ns, origin_unix_ns)}"
    )


def _offset(unix_ns: int, origin_unix_ns: int) -> str:
    return f"{(unix_ns - origin_unix_ns) / _NS_PER_S:+.3f} s"
