"""Where in their programs threads were: the line of code first, then the frames around it."""

from collections import Counter
from collections.abc import Iterable

from otel_gpu.enrich.activities import CallStack
from otel_gpu.enrich.stack_text import cut_frames, describe_place, frame_line
from otel_gpu.explain.chains import Cause, Chain, Evidence, Incident, stack_of_cause
from otel_gpu.faces.html.elements import Child, Markup, clip, element, join_with
from otel_gpu.faces.html.names import effect_of, thread_of
from otel_gpu.faces.html.sentences import label_of
from otel_gpu.faces.waterfall import find_intervals
from otel_gpu.findings.words import count_of, format_duration

MOST_FRAMES = 64
MOST_STACKS = 5
_FRAMES_OF_WAITS = 24
_MOST_PLACES = 3
_CHARACTERS = 160
# Where these were is said of the effect itself.
_KINDS_OF_EFFECTS = frozenset({"call", "gap"})


def place_of(stack: CallStack | None) -> Markup | None:
    """Name the line of the program's own code, or the function where there are no lines."""
    if stack is None or stack.place is None:
        return None
    return _code(describe_place(stack.place))


def place_of_interval(evidence: Evidence) -> Markup | None:
    """Name where a thread was in a measured interval, unless that is the effect itself."""
    return None if evidence.kind in _KINDS_OF_EFFECTS else place_of(evidence.stack)


def places_of(incident: Incident) -> Child:
    """Say where the effects of an incident were, or else where they waited; None: not known."""
    stacks = [chain.effect.stack or _waited_at(chain.causes) for chain in incident.chains]
    places = Counter(describe_place(one.place) for one in stacks if one and one.place)
    ranked = sorted(places.items(), key=lambda item: (-item[1], item[0]))
    if not ranked:
        return None
    if len(ranked) == 1:
        return _code(ranked[0][0])
    told: list[Child] = [
        [_code(place), f" {count:,} \N{MULTIPLICATION SIGN}"]
        for place, count in ranked[:_MOST_PLACES]
    ]
    if len(ranked) > _MOST_PLACES:
        told.append(f"{count_of(len(ranked) - _MOST_PLACES, 'other place')}")
    return join_with(", ", told)


def frames_of(stack: CallStack, most: int = MOST_FRAMES) -> list[Child]:
    """List the frames of a stack, innermost first; the one that is named before stands out."""
    frames = cut_frames(stack.frames, most)
    place = frames.index(stack.place) if stack.place in frames else None
    rows = [
        element("li", _code(frame_line(frame)), class_="place" if number == place else None)
        for number, frame in enumerate(frames)
    ]
    rest = None
    if not stack.complete:
        told = f"Incomplete: native {stack.native}, Python {stack.python}."
        rest = element("p", told, class_="quiet")
    return [element("ol", rows, class_="frames"), rest]


def stack_details(
    told: Child, stack: CallStack, *, is_open: bool = False, most: int = MOST_FRAMES
) -> Markup:
    """Show the line of a stack, and its frames when they are asked for."""
    place = place_of(stack)
    return element(
        "details",
        element("summary", told, [" at ", place] if place else None),
        frames_of(stack, most),
        class_="program",
        open=is_open,
    )


def stacks_of_chain(chain: Chain) -> list[Child]:
    """Show where an effect was, then where those were that it waited in or for."""
    effect = chain.effect
    shown: list[Child] = []
    seen: set[int] = set()
    if effect.stack is not None:
        shown.append(stack_details(effect_of(effect), effect.stack, is_open=True))
        seen.add(effect.stack.id)
    longest = sorted(
        find_intervals(chain),
        key=lambda one: (-one.length_ns, one.evidence.start_unix_ns, one.evidence.id),
    )
    for interval in longest:
        evidence = interval.evidence
        stack = evidence.stack
        if stack is None or stack.id in seen or evidence.kind in _KINDS_OF_EFFECTS:
            continue
        seen.add(stack.id)
        who = [thread_of(interval.thread), ": "] if interval.thread else None
        length = f" for {format_duration(interval.length_ns)}"
        told = [who, label_of(interval.cause.kind), length]
        shown.append(stack_details(told, stack, most=_FRAMES_OF_WAITS))
        if len(shown) == MOST_STACKS:
            break
    if not shown:
        return []
    return [element("h4", "Where in the program"), element("div", shown, class_="programs")]


def place_of_cause(cause: Cause, own: CallStack | None) -> Markup | None:
    """Name where a thread was for most of a cause, unless it is where its effect was."""
    stack = stack_of_cause(cause)
    return None if own is not None and stack == own else place_of(stack)


def _waited_at(causes: Iterable[Cause]) -> CallStack | None:
    found = (stack_of_cause(cause) for cause in causes)
    return next((stack for stack in found if stack is not None), None)


def _code(text: str) -> Markup:
    return element("code", element("bdi", clip(text, _CHARACTERS)))
