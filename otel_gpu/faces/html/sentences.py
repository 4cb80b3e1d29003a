"""What happened, in sentences made of phrases and names."""

from otel_gpu.explain.chains import Cause, Culprit
from otel_gpu.faces.html.elements import Child, Markup, join, join_with
from otel_gpu.faces.html.names import name_of, thread_of
from otel_gpu.faces.html.phrases import OTHER, PHRASES, WHO, Phrase

_LEADING_SHARE = 0.5


# Of a run queue, where no thread had the CPU.
_IDLE_CPU = "idle_cpu"


def tone_of(kind: str) -> str:
    """What a kind of cause is drawn in."""
    phrase = PHRASES.get(kind)
    return phrase.tone if phrase else OTHER


def label_of(kind: str) -> Child:
    """A kind of cause in a word or two."""
    phrase = PHRASES.get(kind)
    return phrase.name if phrase else name_of(kind)


def path_of(cause: Cause) -> tuple[Cause, ...]:
    """A cause, then what most of it was due to, as long as one thing was."""
    path = [cause]
    while cause.via:
        most = max(cause.via, key=lambda other: other.time_ns)
        if most.time_ns < _LEADING_SHARE * cause.time_ns:
            break
        path.append(most)
        cause = most
    return tuple(path)


def because(cause: Cause) -> Markup:
    """Say what happened, from the thread that was slow to the last one that is to blame."""
    first, *rest = path_of(cause)
    told = [what_happened(first)]
    subject = first.culprit
    for step in rest:
        told.append(what_it_did(step, subject))
        subject = step.culprit or subject
    return join_with(", ", told)


def what_happened(cause: Cause) -> Markup:
    """Say what kept the thread that was slow."""
    phrase = _phrase_of(cause)
    return _fill(phrase.because, cause.culprit) if phrase else name_of(cause.kind)


def what_it_did(cause: Cause, subject: Culprit | None) -> Markup:
    """Say what kept a thread that was waited for, as a clause about it."""
    phrase = _phrase_of(cause)
    # Where nobody kept it waiting, the thread itself stands as culprit.
    culprit = None if cause.culprit == subject else cause.culprit
    return _fill(phrase.which, culprit) if phrase else name_of(cause.kind)


def fault(cause: Cause, pid: int) -> Markup:
    """
    Say whose fault it is.

    Args:
        cause: The leading one.
        pid: Of the process that lost the time.
    """
    last = path_of(cause)[-1]
    phrase = _phrase_of(last)
    if phrase is None:
        return join("not known")
    told = _fill(phrase.fault, last.culprit)
    if last.culprit is None or phrase.fault[0] != WHO:
        return told
    is_own = last.culprit.pid == pid
    return join([told, ", a thread of the same program" if is_own else ", another process"])


def _phrase_of(cause: Cause) -> Phrase | None:
    is_idle = cause.kind == "run_queue" and cause.culprit is None and _was_cpu_idle(cause)
    return PHRASES.get(_IDLE_CPU if is_idle else cause.kind)


def _was_cpu_idle(cause: Cause) -> bool:
    """Whether no thread had the CPU for most of what was measured."""
    idle_ns = busy_ns = 0
    for evidence in cause.evidence:
        length_ns = max(0, evidence.end_unix_ns - evidence.start_unix_ns)
        if evidence.is_cpu_idle:
            idle_ns += length_ns
        else:
            busy_ns += length_ns
    return idle_ns > busy_ns


def _fill(words: tuple[str, str], who: Culprit | None) -> Markup:
    if who is None:
        return join(words[1])
    before, found, after = words[0].partition(WHO)
    return join([before, thread_of(who) if found else None, after])
