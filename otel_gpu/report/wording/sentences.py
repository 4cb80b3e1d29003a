"""
Sentences about causes and incidents, made of phrases and names.

A sentence is a sequence of parts: fixed text, threads, and names of traced programs. Each renderer
formats the parts in its own way.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from otel_gpu.report.causes import Interval, path_of, was_cpu_idle
from otel_gpu.report.document import (
    COLLECTIVE,
    Cause,
    CauseKind,
    CodeLines,
    Culprit,
    Effect,
    EffectKind,
    EvidenceKind,
    Failure,
    Frame,
    Incident,
    Program,
    Where,
)
from otel_gpu.report.wording.formats import (
    count_of,
    describe_fault,
    describe_place,
    describe_resource,
    describe_thread,
    describe_trouble,
    describe_where,
    format_duration,
    format_share,
    format_size,
    printable,
    process_name,
)
from otel_gpu.report.wording.phrases import COUNTED, IDLE_CPU, ONE_EFFECT, PHRASES, WHO, Phrase
from otel_gpu.wire.bodies import ResourceKind

_MOST_KINDS = 4
_MOST_CULPRITS = 4
# For other kinds the lines are those of the thread that had the CPU.
_BEFORE_LINES: Mapping[str, str] = {
    CauseKind.HOST_WORK: ", ",
    CauseKind.UNEXPLAINED: ", but for samples ",
    CauseKind.GIL: ", while others of its process worked ",
}
TIMES = "\N{MULTIPLICATION SIGN}"


class Name(str):
    """A name that a traced program chose."""

    __slots__ = ()


class Code(Name):
    """The name of a function or API."""

    __slots__ = ()


class Strong(str):
    """Text to emphasize."""

    __slots__ = ()


class FrameLine(NamedTuple):
    """A frame as a code location."""

    frame: Frame


Part = str | Culprit | Program | FrameLine
Sentence = tuple[Part, ...]


def label_of(kind: str) -> str:
    """Return a kind of cause in a word or two."""
    phrase = PHRASES.get(kind)
    return phrase.name if phrase else Name(kind)


def because(cause: Cause) -> Sentence:
    """Return what happened, from the slow thread to the last culprit."""
    first, *rest = path_of(cause)
    parts = list(what_happened(first))
    subject = first.culprit
    for step in rest:
        parts += [", ", *what_it_did(step, subject)]
        subject = step.culprit or subject
    return tuple(parts)


def what_happened(cause: Cause) -> Sentence:
    """Return what delayed the slow thread."""
    phrase = _phrase_of(cause)
    parts = _fill(phrase.because, who_of(cause)) if phrase else (Name(cause.kind),)
    return (*parts, *_of_what(cause))


def what_it_did(cause: Cause, subject: Culprit | None) -> Sentence:
    """Return what delayed a thread that was waited for, as a clause about it."""
    phrase = _phrase_of(cause)
    # Without another culprit, the thread itself is the culprit.
    who = () if cause.culprit == subject else who_of(cause)
    parts = _fill(phrase.which, who) if phrase else (Name(cause.kind),)
    return (*parts, *_of_what(cause))


def fault(cause: Cause, pid: int) -> Sentence:
    """
    Return the culprit of a cause.

    Args:
        cause: The leading cause.
        pid: Of the process that lost the time.
    """
    *before, last = path_of(cause)
    if before and last.kind == CauseKind.UNEXPLAINED and before[-1].kind in COLLECTIVE:
        # The reason for their absence is not known, but the absence is.
        last = before[-1]
    phrase = _phrase_of(last)
    if phrase is None:
        return ("not known",)
    parts = _fill(phrase.fault, who_of(last))
    if last.culprit is None or last.others or phrase.fault.partition("|")[0] != WHO:
        return parts
    is_own = last.culprit.pid == pid
    return (*parts, ", a thread of the same program" if is_own else ", another process")


def sentence_of(incident: Incident) -> Sentence:
    """Return what happened in an incident, or that it is not known."""
    if incident.chains and all(
        one.effect.kind == EffectKind.FAILED_CALL for one in incident.chains
    ):
        return ("Calls returned an error",)
    killed = [one for one in incident.chains if one.effect.kind == EffectKind.KILLED_CALL]
    if killed:
        return (f"A signal ended the process in {killed[-1].effect.api}",)
    if any(one.effect.kind == EffectKind.NETWORK_EVENT for one in incident.chains):
        return ("A network adapter, or a queue of it, failed",)
    if not incident.causes:
        return ("The cause was not seen",)
    return because(incident.causes[0])


def request_of(failure: Failure) -> Sentence:
    """Return the size and place of a failed request, and the memory at that time."""
    parts = [
        Name(describe_place(failure.place)),
        f" asked for {format_size(failure.asked_bytes)} of device {failure.device}",
    ]
    free = failure.device_free_bytes
    parts += [f"; the device had {format_size(free)} free"] if free is not None else []
    if failure.hole_bytes:
        largest = failure.largest_hole_bytes
        known = f", the largest of them {format_size(largest)}" if largest is not None else ""
        parts += [f"; the allocator had {format_size(failure.hole_bytes)} in holes{known}"]
    if failure.outside_bytes and failure.cause == CauseKind.OTHER_PROCESS:
        parts += [f"; others held {format_size(failure.outside_bytes)}"]
    if failure.leaks and failure.cause == CauseKind.LEAK:
        kept = failure.leaks[0]
        parts += [f"; {format_size(kept.size_bytes)} more is held by "]
        parts += [Name(describe_place(kept.place))]
    return tuple(parts)


def only_met_fault(incident: Incident) -> bool:
    """Return whether a device had an error that delayed nothing."""
    is_faulted = any(chain.effect.kind == EffectKind.DEVICE_FAULT for chain in incident.chains)
    return is_faulted and not incident.lost_ns


def loss_of(incident: Incident) -> Sentence:
    """Return which processes lost how much, in which effects."""
    parts: list[Part] = []
    for program in incident.processes:
        parts += [", ", program] if parts else [program]
    failures = [chain.failure for chain in incident.chains if chain.failure is not None]
    if failures:
        times = f" {incident.effects:,} times" if incident.effects > 1 else ""
        return (*parts, f" ran out of memory{times}: ", *request_of(failures[-1]))
    if only_met_fault(incident):
        return (*parts, " met ", *_effects(incident))
    parts += [" lost ", Strong(format_duration(incident.lost_ns))]
    if incident.chronic:
        share = format_share(incident.causes[0].share)
        parts.append(f", {share} of the time of its launching threads")
    if incident.effects or not incident.chronic:
        parts += [", also in " if incident.chronic else " in ", *_effects(incident)]
    return tuple(parts)


def circumstances(interval: Interval) -> Iterator[Sentence]:
    """Yield the other threads of a measured interval."""
    evidence = interval.evidence
    if evidence.is_cpu_idle:
        yield ("no thread had the CPU",)
    if evidence.culprit and evidence.culprit != interval.thread:
        # Only in a run queue the culprit is known to have had the CPU.
        yield (
            (evidence.culprit, " had the CPU")
            if evidence.kind == EvidenceKind.RUN_QUEUE
            else (evidence.culprit,)
        )
    if evidence.waker and evidence.waker not in (evidence.culprit, interval.thread):
        yield ("woken by ", evidence.waker)


def plain(sentence: Sentence) -> str:
    """Write a sentence as plain text without control characters."""
    written = []
    for part in sentence:
        match part:
            case Culprit():
                written.append(describe_thread(part))
            case Program():
                written.append(process_name(part))
            case FrameLine():
                written.append(describe_place(part.frame))
            case _:
                written.append(printable(part))
    return "".join(written)


def effect_parts(effect: Effect) -> Sentence:
    """Return the kind of effect, with its call."""
    parts = describe_fault(effect)
    return (parts, " ", Code(effect.api)) if effect.api else (parts,)


def _effects(incident: Incident) -> Iterator[Part]:
    effects = [chain.effect for chain in incident.chains]
    if incident.effects == 1 and effects:
        yield from (ONE_EFFECT.get(effects[0].kind, "one effect in "), Code(effects[0].api))
        return
    kinds = Counter((describe_fault(effect), effect.api) for effect in effects)
    ranked = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    if len(ranked) == 1:
        words, api = ranked[0][0]
        yield from (f"{incident.effects:,} {TIMES} {words} ", Code(api))
        return
    among = "among them " if incident.effects > len(effects) else ""
    yield f"{count_of(incident.effects, 'effect')}, {among}"
    for number, ((words, api), count) in enumerate(ranked[:_MOST_KINDS]):
        yield from (f"{', ' if number else ''}{count:,} {TIMES} {words} ", Code(api))
    if len(ranked) > _MOST_KINDS:
        yield f", {len(ranked) - _MOST_KINDS:,} other kinds"


def in_line(where: Where, work: str, share: float, samples: int) -> Sentence:
    """
    Return the line that worked, and its samples.

    Args:
        where: The line.
        work: The operation in it, if known.
        share: The line's share of samples.
        samples: Count of all samples.
    """
    known = f" ({work})" if work else ""
    counted = f"{format_share(share)} of {count_of(samples, 'sample')}"
    return ("in ", Name(describe_where(where)), f"{known}: {counted}")


def in_lines(lines: CodeLines) -> Sentence:
    """Return the main line of the samples; empty: not known."""
    line = lines.first
    return (
        in_line(where=line.where, work=line.work, share=lines.share_of(line), samples=lines.samples)
        if line
        else ()
    )


def counts_of(cause: Cause) -> str:
    """Return the counters of a cause that only counters show; empty for others."""
    if not cause.is_counted:
        return ""
    return "; ".join(printable(one.reason) for one in cause.evidence)


def lines_of(cause: Cause) -> Sentence:
    """
    Return the lines of the work at which a cause ends, as the end of a sentence; empty: not known.
    """
    where = in_lines(cause.lines)
    return (_BEFORE_LINES.get(cause.kind, ", which was "), *where) if where else ()


def _of_what(cause: Cause) -> Sentence:
    name = describe_resource(cause.resource) if cause.resource else counts_of(cause)
    name = describe_trouble(cause.trouble) if cause.trouble else name
    is_ours = cause.resource is not None and cause.resource.kind == ResourceKind.COLLECTIVE
    parts: Sentence = (": ", name if is_ours else Name(name)) if name else ()
    return (*parts, *lines_of(cause))


def _phrase_of(cause: Cause) -> Phrase | None:
    is_idle = cause.kind == CauseKind.RUN_QUEUE and cause.culprit is None and was_cpu_idle(cause)
    return PHRASES.get(IDLE_CPU if is_idle else COUNTED if cause.is_counted else cause.kind)


def who_of(cause: Cause) -> Sentence:
    """Return the culprits of a cause, the first few by name."""
    parts: list[Part] = []
    for culprit in cause.culprits[:_MOST_CULPRITS]:
        parts += [", ", culprit] if parts else [culprit]
    more = len(cause.culprits) - _MOST_CULPRITS
    return (*parts, f" and {more:,} more") if more > 0 else tuple(parts)


def _fill(words: str, who: Sentence) -> Sentence:
    known, _, unknown = words.partition("|")
    if not who:
        return (unknown or known,)
    before, found, after = known.partition(WHO)
    return tuple(part for part in (before, *(who if found else ()), after) if part)
