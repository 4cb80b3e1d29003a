"""What a tool is, and what several tools say in the same way."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from otel_gpu.faces.mcp.answers import inert, micros, name_of
from otel_gpu.faces.mcp.arguments import Argument, Question
from otel_gpu.faces.mcp.captures import Capture
from otel_gpu.findings.document import Culprit, Document, ProcessImage
from otel_gpu.findings.words import format_time, service_of

Answer = Mapping[str, Any]


class Tool(NamedTuple):
    """
    Something that can be asked.

    Attributes:
        name: As it is called.
        title: For people.
        description: For the assistant: what it answers, and in what units.
        arguments: What it can be asked with.
        answer: Answers; raises ``OtelGpuError`` where it cannot.
    """

    name: str
    title: str
    description: str
    arguments: tuple[Argument, ...]
    answer: Callable[[Capture, Question], Answer]


def limit_argument(default: int, most: int, what: str) -> Argument:
    """Return the argument that says how many rows are wanted."""
    text = f"How many {what} at most. Default: {default}."
    return Argument("limit", "integer", text, least=1, most=most)


def about(document: Document) -> dict[str, Any]:
    """Return what an answer is about: the first part of it."""
    return {
        "source": inert(document.source),
        "window": {
            "from_utc": format_time(document.start_unix_ns),
            "start_unix_ns": document.start_unix_ns,
            "length_us": micros(document.end_unix_ns - document.start_unix_ns),
        },
    }


def service(process: ProcessImage) -> str:
    """Return the name of a process in backends."""
    return name_of(service_of(process))


def thread_of(thread: Culprit | None, pid: int) -> dict[str, Any] | None:
    """Return a thread, and whether it belongs to the process that it cost time."""
    if thread is None:
        return None
    shown: dict[str, Any] = {
        "thread": name_of(thread.comm),
        "pid": thread.pid,
        "tid": thread.tid,
    }
    if thread.pid == pid:
        shown["own_process"] = True
    return shown


def since(unix_ns: int, document: Document) -> float | int | None:
    """Return how long after the beginning of a window something was, in microseconds."""
    return micros(unix_ns - document.start_unix_ns)


def share(part: float) -> float:
    """Return a share of 1, with as many digits as mean something."""
    return round(part, 4)
