"""What a tool is, and what several tools say in the same way."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic import create_model

from otel_gpu.mcp.answers import Listing, inert, micros, name_of
from otel_gpu.mcp.arguments import Arguments, Question, read_arguments
from otel_gpu.mcp.captures import ServedCapture
from otel_gpu.report.document import Document, Program
from otel_gpu.report.wording.formats import format_time, service_of

Answer = Mapping[str, Any]


class Tool(NamedTuple):
    """
    Something that can be asked.

    ``description`` is for the assistant: what is answered, and in what units. ``function`` takes
    the capture and what the arguments hold, and raises ``OtelGpuError`` where it cannot answer.
    """

    name: str
    title: str
    description: str
    arguments: type[Arguments]
    function: Callable[..., Answer]

    def answer(self, capture: ServedCapture, given: Mapping[str, Any]) -> Answer:
        """Check what was given, and answer."""
        asked: Any = read_arguments(self.arguments, given)
        wanted = inspect.signature(self.function).parameters
        named: dict[str, Any] = {"capture": capture, "asked": asked}
        if "study" in wanted:
            named["study"] = capture.study(asked)
        own = {name: named[name] if name in named else getattr(asked, name) for name in wanted}
        found = self.function(**own)
        return {**about(named["study"].document), **found} if "study" in wanted else found


def tool(title: str) -> Callable[[Callable[..., Answer]], Tool]:
    """
    Make a tool of a typed function: its name, docstring and parameters are the tool's.

    One with a parameter ``asked`` or ``study`` also takes a window and processes; one with
    ``study`` is about their document, and says so.
    """

    def make(function: Callable[..., Answer]) -> Tool:
        parameters = dict(inspect.signature(function).parameters)
        given = [parameters.pop(name, None) for name in ("capture", "asked", "study")]
        fields: dict[str, Any] = {n: (p.annotation, p.default) for n, p in parameters.items()}
        base = Question if given[1] or given[2] else Arguments
        arguments = create_model(function.__name__, __base__=base, **fields)
        description = " ".join((function.__doc__ or "").split())
        return Tool(function.__name__, title, description, arguments, function)

    return make


def noun(row: Any, fields: str, **own: Callable[[Any], object]) -> dict[str, Any]:  # noqa: ANN401
    """
    Return fields of a noun; those that it does not have are in ``own``.

    ``…_us`` is what it has in nanoseconds; ``pid`` and ``service`` are of its process.
    """
    return {name: _value(row, name, own.get(name)) for name in fields.split()}


def table(
    rows: Any,  # noqa: ANN401 -- a sequence of any noun
    fields: str,
    limit: int | None = None,
    **own: Callable[[Any], object],
) -> Listing:
    """Return nouns as rows with one value for each field; no more than the limit."""
    names = tuple(fields.split())
    shown = [[*noun(row, fields, **own).values()] for row in rows[:limit]]
    return Listing(shown, names, len(rows) - len(shown))


def _value(row: Any, name: str, own: Callable[[Any], object] | None) -> object:  # noqa: ANN401
    if own is not None:
        value = own(row)
    elif name == "pid":
        value = row.process.pid
    elif name == "service":
        value = service(row.process)
    elif name.endswith("_us"):
        value = micros(getattr(row, f"{name.removesuffix('_us')}_ns"))
    else:
        value = getattr(row, "size_bytes" if name == "bytes" else name)
    return name_of(value) if isinstance(value, str) else value


def about(document: Document) -> dict[str, Any]:
    """Return what an answer is about: the first part of it."""
    return {
        "source": inert(document.source),
        "window": {
            "from_utc": format_time(document.start_unix_ns),
            "start_unix_ns": document.start_unix_ns,
            "length_us": micros(document.length_ns),
        },
    }


def service(process: Program) -> str:
    """Return the name of a process in backends."""
    return name_of(service_of(process))


def since(unix_ns: int, document: Document) -> float | int | None:
    """Return how long after the beginning of a window something was, in microseconds."""
    return micros(unix_ns - document.start_unix_ns)


def share(part: float) -> float:
    """Return a share of 1, with as many digits as mean something."""
    return round(part, 4)
