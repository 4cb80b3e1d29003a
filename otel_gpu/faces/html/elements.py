"""
Elements: the only place where text becomes markup.

A ``str`` is text: it is made visible, clipped and escaped, wherever it comes from. Only
``Markup`` goes into a page as it is, and only this module makes any of strings.
"""

# Some facts about hostile names
# ------------------------------
#
# Threads, services, libraries and kernel functions are named by other people's programs,
# and a recording may be a stranger's. Markup in a name is escaped like that in any text.
# What is left are characters that are obeyed rather than shown: controls, and those that
# turn the direction of what follows. They are written as escapes, like on a terminal. A
# page is text that is sent around, so a name of a megabyte must not become a page of one.

import html
import math
import re
from collections.abc import Iterable

from otel_gpu.findings.words import printable

MOST_CHARACTERS = 1_000
"""No text, and no value of an attribute, is longer than this in a page."""

_VOID = frozenset({"meta", "br"})
_ENDING = re.compile(r"</(script|style)", re.ASCII | re.IGNORECASE)
_CLIPPED_TAIL = 12


class Markup(str):
    """A piece of HTML, whole and safe."""

    __slots__ = ()


Child = str | Iterable["Child"] | None
"""Text, markup, several of these, or nothing."""

Value = str | float | bool | None
"""Of an attribute: ``None`` and ``False`` leave it out, ``True`` gives it no value."""


def element(tag: str, *children: Child, **attributes: Value) -> Markup:
    """
    Make an element.

    Args:
        tag: Its name, one of ours.
        *children: What is in it.
        **attributes: Their names are ours too; ``_`` stands for ``-``, and one at the
            end for nothing, so that ``class_`` can be written.
    """
    names = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items())
    head = "".join(_attribute(name, value) for name, value in names)
    if tag in _VOID:
        return Markup(f"<{tag}{head}>")
    return Markup(f"<{tag}{head}>{join(children)}</{tag}>")


def join(children: Child) -> Markup:
    """Put children beside each other."""
    if children is None:
        return Markup()
    if isinstance(children, str):
        return children if isinstance(children, Markup) else Markup(escape(children))
    return Markup("".join(join(child) for child in children))


def join_with(separator: str, children: Iterable[Child]) -> Markup:
    """Put children beside each other with text between them."""
    parts = [join(child) for child in children]
    return Markup(escape(separator).join(part for part in parts if part))


def raw(tag: str, source: str) -> Markup:
    """
    Make a ``style`` or ``script`` element of a source of ours; its text is not escaped.

    Raises:
        ValueError: The source would end the element.
    """
    if _ENDING.search(source):
        raise ValueError(f"the {tag} would end before its end")
    return Markup(f"<{tag}>{source}</{tag}>")


def escape(text: str) -> str:
    """Make text visible, clip it, and escape what HTML would obey."""
    return html.escape(printable(clip(text, MOST_CHARACTERS)), quote=True)


def clip(text: str, most: int) -> str:
    """Shorten text in its middle, and say how long it was: its end may tell it from others."""
    if len(text) <= most:
        return text
    note = f"… ({len(text):,} characters) …"
    head = most - len(note) - _CLIPPED_TAIL
    return f"{text[:head]}{note}{text[-_CLIPPED_TAIL:]}"


def number(value: float) -> str:
    """A coordinate: as few digits as a screen can show, and never what is no number."""
    return f"{value:.3f}".rstrip("0").rstrip(".") if math.isfinite(value) else "0"


def _attribute(name: str, value: Value) -> str:
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    return f' {name}="{value if not isinstance(value, str) else escape(value)}"'
