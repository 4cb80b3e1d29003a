"""
Markup: the only place where text becomes HTML.

Templates escape all values. Before that, text is made visible and shortened here, wherever it comes
from, and parts of sentences become their elements.
"""

# Some facts about hostile names
# ------------------------------
# Threads, services, libraries and kernel functions are named by traced programs, and a recording
# can come from an untrusted source. Markup in a name is escaped as in any text. That leaves
# characters that act instead of being shown: control characters, and those that change the text
# direction. They are written as escapes, as on a terminal. Pages are sent around, so a name of a
# megabyte must not make a page of a megabyte.

import base64
import hashlib
import math
import re
from collections.abc import Callable, Mapping
from importlib import resources
from types import ModuleType
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.defaults import DEFAULT_NAMESPACE
from markupsafe import Markup, escape

from otel_gpu.report.document import Culprit, Frame, FrameType, Program
from otel_gpu.report.wording.formats import (
    describe_place,
    frame_line,
    named,
    printable,
    thread_number,
    whole_line,
)
from otel_gpu.report.wording.sentences import Code, FrameLine, Name, Strong

MOST_CHARACTERS = 1_000
"""The maximal length of a text or an attribute's value in a page."""

_NAME_CHARACTERS = 64
_ID_CHARACTERS = 48
_FRAME_CHARACTERS = 160
# More than a recording holds of a function and of its library together.
_WHOLE_CHARACTERS = 700
_CLIPPED_TAIL = 12
_WHO = Markup('<span class="who">{} ({})</span>')
_ENDING = re.compile(r"</(script|style)", re.ASCII | re.IGNORECASE)


class Quiet(str):
    """Secondary text."""

    __slots__ = ()


class Id(str):
    """An id as in telemetry and other answers."""

    __slots__ = ()


def show(value: object) -> object:
    """Return a template's value as sanitized text, or as complete markup."""
    forms = (_FORMS[kind] for kind in type(value).__mro__ if kind in _FORMS)
    return next(forms, lambda shown: shown)(value)


def clip(text: str, most: int = MOST_CHARACTERS) -> str:
    """Make text visible; shorten it in its middle, since its end can distinguish it."""
    if len(text) > most:
        note = f"… ({len(text):,} characters) …"
        head = most - len(note) - _CLIPPED_TAIL
        text = f"{text[:head]}{note}{text[-_CLIPPED_TAIL:]}"
    return printable(text)


def number(value: float) -> str:
    """Return a coordinate with as many digits as a screen can show; 0 if it is not finite."""
    return f"{value:.3f}".rstrip("0").rstrip(".") if math.isfinite(value) else "0"


def source(name: str) -> Markup:
    """
    Return one of the package's styles or scripts; ``ValueError``: it would end its own element.
    """
    return as_source(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))


def as_source(text: str) -> Markup:
    """Return fixed text as the content of a ``style`` or ``script``; raises as ``source``."""
    if _ENDING.search(text):
        raise ValueError("the text would close its element early")
    return Markup(text)  # noqa: S704 -- fixed text, checked above


def hash_of(text: str) -> str:
    """Return the hash by which a policy allows a style or script."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _code(frame: Frame, line: str) -> Markup:
    text = clip(line, _FRAME_CHARACTERS)
    if frame.kind != FrameType.NATIVE:
        return Markup("<code><bdi>{}</bdi></code>").format(text)
    # Names of C++ are shown short, and in full on hover.
    whole = clip(whole_line(frame), _WHOLE_CHARACTERS)
    return Markup('<code title="{}"><bdi>{}</bdi></code>').format(whole, text)


def _name(name: str) -> Markup:
    # Right-to-left letters do not affect the text around them.
    return Markup("<bdi>{}</bdi>").format(clip(name, _NAME_CHARACTERS))


def _who(name: str, pid: int, number: str) -> Markup:
    return _name(name) if pid < 0 else _WHO.format(_name(name), number)


# The forms of values, by type or base type.
_FORMS: Mapping[type, Callable[[Any], object]] = {
    type(None): lambda _: "",
    Markup: lambda markup: markup,
    str: clip,
    Name: _name,
    Code: lambda name: Markup("<code>{}</code>").format(_name(name)),
    Strong: lambda text: Markup("<b>{}</b>").format(clip(text)),
    Quiet: lambda text: Markup('<span class="quiet">{}</span>').format(clip(text)),
    Id: lambda name: Markup("<code>{}</code>").format(clip(name, _ID_CHARACTERS)),
    # An import can lack the pids and describe its processes instead.
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
    Return the names for templates: functions, classes and constants of modules, and more.

    Raises:
        ValueError: One name has two different meanings, and the later one would win.
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
