"""Short forms of texts: those of texts that differ, differ."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from otel_gpu.report.wording.formats import short_function

_CUT = "…"
# What of two names of functions is the same anyway, and only takes room.
_NAMESPACES = re.compile(r"\b(?:\w+::)+|\(anonymous namespace\)::|<unnamed>::|^void ")
_NUMBERED = re.compile(r" \(\d{1,10}\)$")
_LONGEST = 80
# Characters of a name that are looked at; a file can have names as long as it likes.
_MOST = 4_096


def cut_apart(texts: Sequence[str], width: int) -> list[str]:
    """
    Return texts cut to a width, so that those that differ still do.

    A text is cut at its end. Of those that are alike so far, the middle is left out instead, up to where they
    differ. What differs in more places than fit is numbered.
    """
    cuts = {text: _cut(text, width) for text in texts}
    _separate(cuts, width)
    _number(cuts, width)
    return [cuts[text] for text in texts]


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return the short form of each name of a function; of functions of one name, with what differs behind it."""
    found = {name: short_function(name[:_MOST]) for name in names}
    for alike in _alike(found).values():
        longer = {name: _NAMESPACES.sub("", _without_parameters(name[:_MOST])) for name in alike}
        # Of those that differ in what was taken away, all of it.
        longer |= {name: name for group in _alike(longer).values() for name in group}
        found |= zip(longer, cut_apart([*longer.values()], _LONGEST), strict=True)
    _number(found, _LONGEST)
    return found


def _without_parameters(name: str) -> str:
    depth = 0
    for at in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[at], 0)
        if not depth:
            return name[:at] if name[at] == "(" and at else name
    return name


def _alike(found: dict[str, str]) -> dict[str, list[str]]:
    """Return the forms that stand for several texts."""
    groups: dict[str, list[str]] = defaultdict(list)
    for text, form in found.items():
        groups[form].append(text)
    return {form: group for form, group in groups.items() if len(group) > 1}


def _separate(cuts: dict[str, str], width: int) -> None:
    """Leave out the middle of texts whose forms are alike."""
    for group in _alike(cuts).values():
        # A third is for how they begin, if what differs is not there.
        # Of all of them, the first and the last in order differ earliest.
        first, last = min(group), max(group)
        differs = next(at for at, sign in enumerate(f"{last} ") if first[at : at + 1] != sign)
        head = min(differs, max(1, width // 3))
        room = width - head - 1
        start = _start_of_word(group[0], differs, room // 2)
        # What is left of the room is for what is before that.
        start = max(head, min(start, max(map(len, group)) - room))
        within = {text: f"{text[:head]}{_CUT}{_cut(text[start:], room)}" for text in group}
        if 1 < len(set(within.values())) < len(group):
            _separate(within, width)
        cuts |= within


def _number(cuts: dict[str, str], width: int) -> None:
    for form, group in _alike(cuts).items():
        for number, text in enumerate(group[1:], 2):
            mark = f"{_CUT}{number}"
            cuts[text] = f"{form[: max(0, width - len(mark))]}{mark}"


def _start_of_word(text: str, at: int, most: int) -> int:
    """Return where the word at a place begins; the place itself, if that is further than the most."""
    begun = at
    while begun and text[begun - 1 : begun].isalnum():
        begun -= 1
    return begun if at - begun <= most else at


def _cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    # A number in brackets at the end tells processes apart.
    numbered = _NUMBERED.search(text)
    end = numbered[0] if numbered and 2 * len(numbered[0]) < width else ""
    start = text[: max(0, width - 1 - len(end))]
    # Half a number is a wrong one.
    if start[-1:].isdecimal() and text[len(start)].isdecimal():
        start = start.rstrip("0123456789")
    return f"{start}{_CUT}{end}"
