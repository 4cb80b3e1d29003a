"""
What happened, in sentences of phrases and names.

A sentence is a row of parts: text of ours, threads, and names of the traced. A face writes each
part in its own way.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from otel_gpu.explain.nccl import collective_names
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

_MOST_KINDS = 4
_MOST_CULPRITS = 4
# Of other kinds it is who had the CPU that was at work, and not who waited for it.
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
    """The name of something that can be called."""

    __slots__ = ()


class Strong(str):
    """Text that the sentence is about."""

    __slots__ = ()


Part = str | Culprit | Program
Sentence = tuple[Part, ...]


def label_of(kind: str) -> str:
    """A kind of cause in a word or two."""
    phrase = PHRASES.get(kind)
    return phrase.name if phrase else Name(kind)


def because(cause: Cause) -> Sentence:
    """Say what happened, from the thread that was slow to the last one that is to blame."""
    first, *rest = path_of(cause)
    said = list(what_happened(first))
    subject = first.culprit
    for step in rest:
        said += [", ", *what_it_did(step, subject)]
        subject = step.culprit or subject
    return tuple(said)


def what_happened(cause: Cause) -> Sentence:
    """Say what kept the thread that was slow."""
    phrase = _phrase_of(cause)
    said = _fill(phrase.because, who_of(cause)) if phrase else (Name(cause.kind),)
    return (*said, *_of_what(cause))


def what_it_did(cause: Cause, subject: Culprit | None) -> Sentence:
    """Say what kept a thread that was waited for, as a clause about it."""
    phrase = _phrase_of(cause)
    # Where no other thread kept it waiting, the thread itself stands as culprit.
    who = () if cause.culprit == subject else who_of(cause)
    said = _fill(phrase.which, who) if phrase else (Name(cause.kind),)
    return (*said, *_of_what(cause))


def fault(cause: Cause, pid: int) -> Sentence:
    """
    Say whose fault it is.

    Args:
        cause: The leading one.
        pid: Of the process that lost the time.
    """
    *before, last = path_of(cause)
    if before and last.kind == CauseKind.UNEXPLAINED and before[-1].kind in COLLECTIVE:
        # Why they did not come is not known, and that they did not is.
        last = before[-1]
    phrase = _phrase_of(last)
    if phrase is None:
        return ("not known",)
    said = _fill(phrase.fault, who_of(last))
    if last.culprit is None or last.others or phrase.fault.partition("|")[0] != WHO:
        return said
    is_own = last.culprit.pid == pid
    return (*said, ", a thread of the same program" if is_own else ", another process")


def sentence_of(incident: Incident) -> Sentence:
    """Say what happened; where nothing is known, that."""
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
        return ("What this time went to was not seen",)
    return because(incident.causes[0])


def request_of(failure: Failure) -> Sentence:
    """Say what a request asked for that failed, where, and what there was."""
    said = [
        Name(describe_place(failure.place)),
        f" asked for {format_size(failure.asked_bytes)} of device {failure.device}",
    ]
    free = failure.device_free_bytes
    said += [f"; the device had {format_size(free)} free"] if free is not None else []
    if failure.hole_bytes:
        largest = failure.largest_hole_bytes
        known = f", the largest of them {format_size(largest)}" if largest is not None else ""
        said += [f"; the allocator had {format_size(failure.hole_bytes)} in holes{known}"]
    if failure.outside_bytes and failure.cause == CauseKind.OTHER_PROCESS:
        said += [f"; others held {format_size(failure.outside_bytes)}"]
    if failure.leaks and failure.cause == CauseKind.LEAK:
        kept = failure.leaks[0]
        said += [f"; {format_size(kept.size_bytes)} more is held by "]
        said += [Name(describe_place(kept.place))]
    return tuple(said)


def only_met_fault(incident: Incident) -> bool:
    """Whether a device had an error, and nothing was slow for it."""
    is_faulted = any(chain.effect.kind == EffectKind.DEVICE_FAULT for chain in incident.chains)
    return is_faulted and not incident.lost_ns


def loss_of(incident: Incident) -> Sentence:
    """Say who lost how much, in what."""
    said: list[Part] = []
    for image in incident.processes:
        said += [", ", image] if said else [image]
    failures = [chain.failure for chain in incident.chains if chain.failure is not None]
    if failures:
        times = f" {incident.effects:,} times" if incident.effects > 1 else ""
        return (*said, f" ran out of memory{times}: ", *request_of(failures[-1]))
    if only_met_fault(incident):
        return (*said, " met ", *_effects(incident))
    said += [" lost ", Strong(format_duration(incident.lost_ns))]
    if incident.chronic:
        share = format_share(incident.causes[0].share)
        said.append(f", {share} of the time of its threads that feed the GPU")
    if incident.effects or not incident.chronic:
        said += [", also in " if incident.chronic else " in ", *_effects(incident)]
    return tuple(said)


def circumstances(interval: Interval) -> Iterator[Sentence]:
    """Say who else had to do with a measured interval."""
    evidence = interval.evidence
    if evidence.is_cpu_idle:
        yield ("no thread had the CPU",)
    if evidence.culprit and evidence.culprit != interval.thread:
        # Only in a run queue is it known that the other one had the CPU.
        yield (
            (evidence.culprit, " had the CPU")
            if evidence.kind == EvidenceKind.RUN_QUEUE
            else (evidence.culprit,)
        )
    if evidence.waker and evidence.waker not in (evidence.culprit, interval.thread):
        yield ("woken by ", evidence.waker)


def plain(sentence: Sentence) -> str:
    """Write a sentence as text that nothing obeys."""
    written = []
    for part in sentence:
        match part:
            case Culprit():
                written.append(describe_thread(part))
            case Program():
                written.append(process_name(part))
            case _:
                written.append(printable(part))
    return "".join(written)


def effect_parts(effect: Effect) -> Sentence:
    """What went wrong with which call or gap."""
    said = describe_fault(effect)
    return (said, " ", Code(effect.api)) if effect.api else (said,)


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
    Say in which line somebody worked, and how many samples say so.

    Args:
        where: The line.
        work: What it asked for, if that is known.
        share: The line's share of them.
        samples: How many there were.
    """
    known = f" ({work})" if work else ""
    counted = f"{format_share(share)} of {count_of(samples, 'sample')}"
    return ("in ", Name(describe_where(where)), f"{known}: {counted}")


def in_lines(lines: CodeLines) -> Sentence:
    """Say in which line somebody mostly worked; nothing where that is not known."""
    line = lines.first
    return (
        in_line(where=line.where, work=line.work, share=lines.share_of(line), samples=lines.samples)
        if line
        else ()
    )


def counts_of(cause: Cause) -> str:
    """What was counted, of a cause that only counters tell of; else nothing."""
    if not cause.is_counted:
        return ""
    return "; ".join(printable(one.reason) for one in cause.evidence)


def lines_of(cause: Cause) -> Sentence:
    """Say whose work a cause ends at, as the end of a sentence; nothing where that is not known."""
    where = in_lines(cause.lines)
    return (_BEFORE_LINES.get(cause.kind, ", which was "), *where) if where else ()


def _of_what(cause: Cause) -> Sentence:
    name = describe_resource(cause.resource) if cause.resource else counts_of(cause)
    name = describe_trouble(cause.trouble) if cause.trouble else name
    is_ours = cause.resource is not None and cause.resource.kind == collective_names.RESOURCE
    said: Sentence = (": ", name if is_ours else Name(name)) if name else ()
    return (*said, *lines_of(cause))


def _phrase_of(cause: Cause) -> Phrase | None:
    is_idle = cause.kind == CauseKind.RUN_QUEUE and cause.culprit is None and was_cpu_idle(cause)
    return PHRASES.get(IDLE_CPU if is_idle else COUNTED if cause.is_counted else cause.kind)


def who_of(cause: Cause) -> Sentence:
    """Name who a cause is due to, at most a few of many."""
    said: list[Part] = []
    for culprit in cause.culprits[:_MOST_CULPRITS]:
        said += [", ", culprit] if said else [culprit]
    more = len(cause.culprits) - _MOST_CULPRITS
    return (*said, f" and {more:,} more") if more > 0 else tuple(said)


def _fill(words: str, who: Sentence) -> Sentence:
    known, _, unknown = words.partition("|")
    if not who:
        return (unknown or known,)
    before, found, after = known.partition(WHO)
    return tuple(part for part in (before, *(who if found else ()), after) if part)
