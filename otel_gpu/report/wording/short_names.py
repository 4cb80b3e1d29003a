"""Short forms of texts that stay distinct."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from otel_gpu.report.wording.formats import short_function

_CUT = "…"
# Parts of function names that are usually the same, and only take up space.
_NAMESPACES = re.compile(r"\b(?:\w+::)+|\(anonymous namespace\)::|<unnamed>::|^void ")
_NUMBERED = re.compile(r" \(\d{1,10}\)$")
_LONGEST = 80
# The characters of a name that are processed; a file can have names of any length.
_MOST = 4_096


def cut_apart(texts: Sequence[str], width: int) -> list[str]:
    """
    Return texts cut to a width, so that different ones stay different.

    A text is cut at its end. Among texts that would become equal, the middle is omitted instead, up
    to the first difference. What differs in too many places is numbered.
    """
    cuts = {text: _cut(text, width) for text in texts}
    _separate(cuts, width)
    _number(cuts, width)
    return [cuts[text] for text in texts]


def short_names(names: Iterable[str]) -> dict[str, str]:
    """
    Return a short form of each function name; those of the same name keep what distinguishes them.
    """
    found = {name: short_function(name[:_MOST]) for name in names}
    for alike in _alike(found).values():
        longer = {name: _NAMESPACES.sub("", _without_parameters(name[:_MOST])) for name in alike}
        # For names that differ only in the removed parts, nothing is removed.
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
    groups: dict[str, list[str]] = defaultdict(list)
    for text, form in found.items():
        groups[form].append(text)
    return {form: group for form, group in groups.items() if len(group) > 1}


def _separate(cuts: dict[str, str], width: int) -> None:
    for group in _alike(cuts).values():
        # A third of the width is for the beginning, unless the difference is there. In sorted
        # order, the first and the last text differ earliest.
        first, last = min(group), max(group)
        differs = next(at for at, sign in enumerate(f"{last} ") if first[at : at + 1] != sign)
        head = min(differs, max(1, width // 3))
        space = width - head - 1
        start = _start_of_word(group[0], differs, space // 2)
        # The rest of the width is for the text before the difference.
        start = max(head, min(start, max(map(len, group)) - space))
        within = {text: f"{text[:head]}{_CUT}{_cut(text[start:], space)}" for text in group}
        if 1 < len(set(within.values())) < len(group):
            _separate(within, width)
        cuts |= within


def _number(cuts: dict[str, str], width: int) -> None:
    for form, group in _alike(cuts).items():
        for number, text in enumerate(group[1:], 2):
            mark = f"{_CUT}{number}"
            cuts[text] = f"{form[: max(0, width - len(mark))]}{mark}"


def _start_of_word(text: str, at: int, most: int) -> int:
    # The start of the word at a position; the position itself if that is further than ``most``.
    begun = at
    while begun and text[begun - 1 : begun].isalnum():
        begun -= 1
    return begun if at - begun <= most else at


def _cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    # A number in brackets at the end distinguishes processes.
    numbered = _NUMBERED.search(text)
    end = numbered[0] if numbered and 2 * len(numbered[0]) < width else ""
    start = text[: max(0, width - 1 - len(end))]
    # A cut number would be a wrong one.
    if start[-1:].isdecimal() and text[len(start)].isdecimal():
        start = start.rstrip("0123456789")
    return f"{start}{_CUT}{end}"
