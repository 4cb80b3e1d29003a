"""
Markup: the only place where text becomes HTML.

Templates escape whatever they put in. Before that, text is made visible and clipped here,
wherever it comes from, and the parts of sentences become the elements that show them.
"""

# Some facts about hostile names
# ------------------------------
#
# Threads, services, libraries and kernel functions are named by other people's programs,
# and a recording may be a stranger's. Markup in a name is escaped like that in any text.
# What is left are characters that are obeyed rather than shown: controls, and those that
# turn the direction of what follows. They are written as escapes, like on a terminal. A
# page is text that is sent around, so a name of a megabyte must not become a page of one.

import base64
import hashlib
import math
import re
from collections.abc import Callable, Mapping
from importlib import resources
from types import ModuleType
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.defaults import DEFAULT_NAMESPACE
from markupsafe import Markup, escape

from otel_gpu.report.document import Culprit, Frame, Program
from otel_gpu.report.wording.formats import (
    describe_place,
    frame_line,
    named,
    printable,
    thread_number,
    whole_line,
)
from otel_gpu.report.wording.sentences import Code, Name, Strong

MOST_CHARACTERS = 1_000
"""No text, and no value of an attribute, is longer than this in a page."""

_NAME_CHARACTERS = 64
_ID_CHARACTERS = 48
_FRAME_CHARACTERS = 160
# More than a recording holds of a function and of its library together.
_WHOLE_CHARACTERS = 700
_CLIPPED_TAIL = 12
_WHO = Markup('<span class="who">{} ({})</span>')
_ENDING = re.compile(r"</(script|style)", re.ASCII | re.IGNORECASE)


class FrameLine(NamedTuple):
    """A frame as the line of code that it is at."""

    frame: Frame


class Quiet(str):
    """Text beside what matters."""

    __slots__ = ()


class Id(str):
    """What something is called in telemetry and in other answers."""

    __slots__ = ()


def show(value: Any) -> Any:  # noqa: ANN401 -- whatever a template puts in
    """Return what a template is to put in for a value: inert text, or markup that is whole."""
    forms = (_FORMS[kind] for kind in type(value).__mro__ if kind in _FORMS)
    return next(forms, lambda shown: shown)(value)


def clip(text: str, most: int = MOST_CHARACTERS) -> str:
    """Make text visible; shorten it in its middle, as its end may differ from others."""
    if len(text) > most:
        note = f"… ({len(text):,} characters) …"
        head = most - len(note) - _CLIPPED_TAIL
        text = f"{text[:head]}{note}{text[-_CLIPPED_TAIL:]}"
    return printable(text)


def number(value: float) -> str:
    """A coordinate: as few digits as a screen can show; what is not finite is 0."""
    return f"{value:.3f}".rstrip("0").rstrip(".") if math.isfinite(value) else "0"


def source(name: str) -> Markup:
    """Return a style or a script of ours; ``ValueError`` where it would end its own element."""
    return as_source(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))


def as_source(text: str) -> Markup:
    """Return text of ours as the whole of a ``style`` or ``script``; raises as ``source``."""
    if _ENDING.search(text):
        raise ValueError("the text would close its element early")
    return Markup(text)  # noqa: S704 -- ours, and as it is meant to be


def hash_of(text: str) -> str:
    """Return what a policy knows a style or a script by."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _code(frame: Frame, line: str) -> Markup:
    text = clip(line, _FRAME_CHARACTERS)
    if frame.kind != "native":
        return Markup("<code><bdi>{}</bdi></code>").format(text)
    # Names of C++ are shown short, and whole when they are pointed at.
    whole = clip(whole_line(frame), _WHOLE_CHARACTERS)
    return Markup('<code title="{}"><bdi>{}</bdi></code>').format(whole, text)


def _name(name: str) -> Markup:
    # Letters that run from right to left stay among themselves.
    return Markup("<bdi>{}</bdi>").format(clip(name, _NAME_CHARACTERS))


def _who(name: str, pid: int, number: str) -> Markup:
    return _name(name) if pid < 0 else _WHO.format(_name(name), number)


# What a value is written as, by its type or the nearest one that it is made of.
_FORMS: Mapping[type, Callable[[Any], Any]] = {
    type(None): lambda _: "",
    Markup: lambda markup: markup,
    str: clip,
    Name: _name,
    Code: lambda name: Markup("<code>{}</code>").format(_name(name)),
    Strong: lambda text: Markup("<b>{}</b>").format(clip(text)),
    Quiet: lambda text: Markup('<span class="quiet">{}</span>').format(clip(text)),
    Id: lambda name: Markup("<code>{}</code>").format(clip(name, _ID_CHARACTERS)),
    # An import may not say which processes they were, and call them what they are.
    Culprit: lambda thread: _who(thread.comm or "?", thread.pid, thread_number(thread)),
    Program: lambda process: _who(named(process), process.pid, str(process.pid)),
    Frame: lambda frame: _code(frame, frame_line(frame)),
    FrameLine: lambda place: _code(place.frame, describe_place(place.frame)),
    tuple: lambda parts: Markup().join(escape(show(part)) for part in parts),
}

ENVIRONMENT = Environment(
    loader=PackageLoader("otel_gpu.report.render.html"),
    autoescape=True,
    finalize=show,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
ENVIRONMENT.filters["number"] = number


def names_for_templates(*modules: ModuleType, more: Mapping[str, object]) -> dict[str, object]:
    """
    Return what templates can name: the functions, classes and constants of modules, and more.

    Raises:
        ValueError: One name stands for two different things, of which the later would win.
    """
    found: dict[str, object] = {}
    for names in (DEFAULT_NAMESPACE, *map(vars, modules), more):
        for name, value in names.items():
            is_offered = callable(value) or name.isupper()
            if name.startswith("_") or not (is_offered or names is more):
                continue
            if found.setdefault(name, value) is not value:
                raise ValueError(f"templates cannot tell two things named {name} apart: rename one")
    return found
