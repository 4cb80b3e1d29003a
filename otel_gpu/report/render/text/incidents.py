"""Incidents as text: the important ones with their causes, the others in a row."""

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.text import Text

from otel_gpu.report.causes import CauseStep, worst_of
from otel_gpu.report.document import (
    Cause,
    Chain,
    Culprit,
    Document,
    Effect,
    EffectKind,
    Incident,
    Severity,
    stack_of_cause,
)
from otel_gpu.report.render.text.headline import style_of
from otel_gpu.report.steps import SlowStepRow
from otel_gpu.report.wording.formats import (
    count_of,
    describe_excess,
    describe_kind,
    describe_place,
    format_duration,
    format_offset,
    format_share,
    printable,
    process_name,
)
from otel_gpu.report.wording.sentences import (
    label_of,
    loss_of,
    only_met_fault,
    plain,
    sentence_of,
    what_happened,
    what_it_did,
)
from otel_gpu.report.wording.shares import largest_first

_MAX_INCIDENTS = 10
_IN_FULL = 3
_MAX_CAUSES = 6
_LEAST_CAUSE = 0.02
_NONE = (
    "None: no call and no gap was far slower than usual, hung or failed, and nothing on the "
    "host took much of the time."
)


def incident_heading(document: Document) -> str:
    """Return the heading: what all incidents lost."""
    lost = format_duration(sum(incident.lost_ns for incident in document.incidents))
    return f"Incidents, the worst first: {lost} lost in all" if document.incidents else "Incidents"


def incident_lines(document: Document, *, is_verbose: bool) -> Iterator[Text]:
    """
    Yield the incidents; those that are left out are one line.

    Args:
        document: The document.
        is_verbose: Also show low incidents and small causes.
    """
    if not document.incidents:
        yield Text(_NONE)
    most = _MAX_INCIDENTS if is_verbose else _IN_FULL
    left_out: list[Incident] = []
    for number, incident in enumerate(document.incidents, 1):
        # The first one always.
        is_important = number == 1 or is_verbose or incident.severity != Severity.LOW
        if is_important and number - len(left_out) <= most:
            yield from _incident(number, incident, document.start_unix_ns, is_verbose=is_verbose)
        else:
            left_out.append(incident)
    yield from _folded(left_out)


def cause_lines(
    whole: Chain | Incident | SlowStepRow,
    effect: Effect | None,
    indent: str,
    *,
    is_verbose: bool = False,
) -> Iterator[Text]:
    """
    Yield causes, each followed by its own, and the unexplained time.

    Args:
        whole: An effect, an incident or a step.
        effect: Its place is not repeated; None: it has none.
        indent: Spaces before each line.
        is_verbose: Also show causes below 2 % of the time.
    """
    least = 0.0 if is_verbose else _LEAST_CAUSE
    yield from _causes(whole.causes, effect, indent, least=least)
    if unexplained_ns := whole.unexplained_ns:
        length_ns = effect.duration_ns if effect is not None and isinstance(whole, Chain) else 0
        share = format_share(unexplained_ns / length_ns) if length_ns else ""
        yield _row(indent, share, time_ns=unexplained_ns, words="unexplained")


def describe_effect(effect: Effect) -> str:
    """Return an effect in a line."""
    place = effect.stack.place if effect.stack else None
    where = f", in {describe_place(place)}" if place else ""
    thread = process_name(effect.process)
    if not effect.duration_ns and effect.kind == EffectKind.DEVICE_FAULT:
        # It belongs to no thread, and took no time.
        return f"{describe_kind(effect)} of {thread}"
    if effect.tid > 0:
        thread += f", thread {effect.tid} {printable(effect.comm)}"
    lasted = f"{format_duration(effect.duration_ns)}, {describe_excess(effect)}"
    return f"{describe_kind(effect)} of {thread}{where}: {lasted}"


def _incident(
    number: int, incident: Incident, origin_unix_ns: int, *, is_verbose: bool
) -> Iterator[Text]:
    edges = (incident.start_unix_ns, incident.end_unix_ns)
    when = " to ".join(format_offset(unix_ns, origin_unix_ns) for unix_ns in edges)
    line = Text(f"{number}. ")
    line.append(printable(incident.severity).upper(), style=style_of(incident.severity))
    yield line.append(f": {plain(loss_of(incident))}, {when}")
    if incident.severity_reason:
        reason = f"{incident.severity.lower()} because {incident.severity_reason}"
        yield Text(f"   {printable(reason)}", style="dim")
    if any(chain.failure for chain in incident.chains) or only_met_fault(incident):
        # It took no time.
        yield Text(f"   {plain(sentence_of(incident))}")
    else:
        yield from _times(incident, is_verbose=is_verbose)
    for advice in incident.advice:
        yield Text(f"   do: {printable(advice)}", style="green")


def _times(incident: Incident, *, is_verbose: bool) -> Iterator[Text]:
    worst = worst_of(incident.chains)
    effect = worst.effect if worst else None
    is_one = incident.effects == 1
    if is_one and effect:
        yield Text(f"   {describe_effect(effect)}")
    yield from cause_lines(
        incident.chains[0] if is_one and incident.chains else incident,
        effect,
        "   ",
        is_verbose=is_verbose,
    )
    if worst and not is_one:
        yield Text(f"   worst: {describe_effect(worst.effect)}")
        if is_verbose:
            yield from cause_lines(worst, effect, "     ", is_verbose=True)


def _folded(incidents: Sequence[Incident]) -> Iterator[Text]:
    if not incidents:
        return
    lost_ns = sum(incident.lost_ns for incident in incidents)
    kinds = Counter(
        plain((label_of(incident.causes[0].kind),)) if incident.causes else "not known"
        for incident in incidents
    )
    named = [f"{count:,} {label}" for label, count in largest_first(kinds)]
    words = next(iter(kinds)) if len(named) == 1 else ", ".join(named)
    counted = f"{len(incidents):,} more, {format_duration(lost_ns)} together: {words}"
    yield Text(f"{counted} (--verbose shows each)", style="dim")


def _causes(
    causes: Sequence[Cause],
    effect: Effect | None,
    indent: str,
    *,
    least: float,
    thread: Culprit | None = None,
    depth: int = 0,
) -> Iterator[Text]:
    deeper = "   " * depth
    small: list[Cause] = []
    for number, cause in enumerate(causes):
        is_large = cause.share >= least or cause.is_counted
        if number and (not is_large or number - len(small) >= _MAX_CAUSES):
            small.append(cause)
            continue
        words = _sentence(CauseStep(cause, thread, depth), effect)
        share = "" if cause.is_counted else format_share(cause.share)
        row = _row(indent, share, time_ns=cause.time_ns, words=f"{deeper}{words}")
        yield row.append(f"  {printable(cause.kind)}", style="dim")
        yield from _causes(
            cause.via, effect, indent, least=least, thread=cause.culprit, depth=depth + 1
        )
    if small:
        time_ns = sum(one.time_ns for one in small)
        yield _row(
            indent, "", time_ns=time_ns, words=f"{deeper}{count_of(len(small), 'smaller cause')}"
        )


def _row(indent: str, share: str, time_ns: int, words: str) -> Text:
    return Text(f"{indent}{share:>5} {format_duration(time_ns):>8}  {words}")


def _sentence(step: CauseStep, effect: Effect | None) -> str:
    # The place is left out if it is that of the effect.
    cause = step.cause
    words = plain(what_it_did(cause, step.thread) if step.depth else what_happened(cause))
    stack = stack_of_cause(cause)
    is_known = effect is not None and stack is effect.stack
    if stack and stack.place and not is_known and not cause.lines.first:
        words += f", in {describe_place(stack.place)}"
    return words
