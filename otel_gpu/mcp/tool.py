"""The tool type, and parts that several answers share."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic import create_model

from otel_gpu.mcp.answers import Listing, micros, name_of, sanitize
from otel_gpu.mcp.arguments import Arguments, Question, read_arguments
from otel_gpu.mcp.captures import ServedCapture
from otel_gpu.report.document import Document, Program
from otel_gpu.report.wording.formats import format_time, service_of

Answer = Mapping[str, object]


class Tool(NamedTuple):
    """
    A tool of the server.

    ``description`` is for the assistant: the answer's content and units. ``function`` takes the
    capture and the arguments; ``OtelGpuError``: it cannot answer.
    """

    name: str
    title: str
    description: str
    arguments: type[Arguments]
    function: Callable[..., Answer]

    def answer(self, capture: ServedCapture, given: Mapping[str, object]) -> Answer:
        """Validate the arguments, and answer."""
        asked: Any = read_arguments(self.arguments, given)
        wanted = inspect.signature(self.function).parameters
        named: dict[str, Any] = {"capture": capture, "asked": asked}
        if "served" in wanted:
            named["served"] = capture.examine(asked)
        own = {name: named[name] if name in named else getattr(asked, name) for name in wanted}
        found = self.function(**own)
        return {**about(named["served"].document), **found} if "served" in wanted else found


def tool(title: str) -> Callable[[Callable[..., Answer]], Tool]:
    """
    Make a tool of a typed function: its name, docstring and parameters are the tool's.

    One with a parameter ``asked`` or ``served`` also takes a window and processes; an answer of one
    with ``served`` starts with the source and window.
    """

    def make(function: Callable[..., Answer]) -> Tool:
        parameters = dict(inspect.signature(function).parameters)
        given = [parameters.pop(name, None) for name in ("capture", "asked", "served")]
        fields: dict[str, Any] = {n: (p.annotation, p.default) for n, p in parameters.items()}
        base = Question if given[1] or given[2] else Arguments
        arguments = create_model(function.__name__, __base__=base, **fields)
        description = " ".join((function.__doc__ or "").split())
        return Tool(
            function.__name__,
            title,
            description=description,
            arguments=arguments,
            function=function,
        )

    return make


def fields_of(row: object, fields: str, **own: Callable[[Any], object]) -> dict[str, object]:
    """
    Return named fields of a row; those that are not its attributes are in ``own``.

    ``…_us`` reads an attribute in nanoseconds; ``pid`` and ``service`` are those of its process.
    """
    return {name: _value(row, name, own.get(name)) for name in fields.split()}


def table(
    rows: Any,  # noqa: ANN401 -- a sequence of any noun
    fields: str,
    limit: int | None = None,
    **own: Callable[[Any], object],
) -> Listing:
    """Return rows with one value for each field; at most ``limit``."""
    names = tuple(fields.split())
    shown = [[*fields_of(row, fields, **own).values()] for row in rows[:limit]]
    return Listing(shown, names, len(rows) - len(shown))


def _value(row: Any, name: str, own: Callable[[object], object] | None) -> object:  # noqa: ANN401
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


def about(document: Document) -> dict[str, object]:
    """Return the source and window of an answer: its first part."""
    return {
        "source": sanitize(document.source),
        "window": {
            "from_utc": format_time(document.start_unix_ns),
            "start_unix_ns": document.start_unix_ns,
            "length_us": micros(document.length_ns),
        },
    }


def service(process: Program) -> str:
    """Return a process's service name."""
    return name_of(service_of(process))


def since(unix_ns: int, document: Document) -> float | int | None:
    """Return the microseconds from the beginning of the window."""
    return micros(unix_ns - document.start_unix_ns)


def share(part: float) -> float:
    """Return a share of 1, rounded to significant digits."""
    return round(part, 4)
