"""
Types of the JSON document that differ from the types of ``document``.

``json_form`` writes them, and the schema is generated from them.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, NotRequired, TypedDict

from msgspec import Meta

from otel_gpu.enrich.known_work import WorkName
from otel_gpu.formatting.field_types import Hex64, NonEmpty, Positive, Signed, one_of
from otel_gpu.report.document import (
    CallStack,
    Cause,
    Chain,
    CodeLines,
    Document,
    Evidence,
    Failure,
    Program,
    Where,
    Window,
)
from otel_gpu.report.memory.types import OutOfMemoryRow
from otel_gpu.wire.frames import RECORDED_TYPES, FrameType, PythonStatus, UnwindMethod

MAX_LINES: Final = 5
"""Of one cause."""
MAX_FRAMES: Final = 64
"""Of one stack in a document; a frame of type ``cut`` replaces the others."""

_FRAME_TYPES = sorted(RECORDED_TYPES | {FrameType.CUDA, FrameType.WAIT, FrameType.UNKNOWN})
ProcessId = Annotated[str, Meta(pattern="^-?[0-9]+-[0-9]+$")]


class WindowForm(TypedDict):
    """An interval of time."""

    start_unix_ns: int
    end_unix_ns: int


class ProcessKeys(TypedDict):
    """
    A program under a pid.

    Attributes:
        pid: Its pid; 0: the sum of many processes; negative: an import has no pid.
        process: The id of a program under a pid, which may have run others before: its pid and
            when it began.
    """

    pid: Signed
    process: ProcessId


class WhereForm(TypedDict):
    """
    A location in a program.

    Attributes:
        line: 0: not known.
    """

    function: str
    file: str
    line: int


class LineForm(WhereForm):
    """
    A line that samples were in.

    Attributes:
        file: Of native code without a name its library.
        line: 0: not known.
        samples: The number of samples.
        share: Of all samples, each weighted by the time that it represents.
        work: What most of it was, by its frames; None: not known.
    """

    samples: Positive
    share: float
    work: WorkName | None


class LineKeys(TypedDict, total=False):
    """
    Lines of code, where samples have any.

    Attributes:
        lines: Those with the most samples. Time is measured; samples only show where it went.
        samples: The number of on-CPU samples of the lines. Absent, as are the lines, without any.
        where: The first of the lines.
    """

    lines: Annotated[list[LineForm], Meta(min_length=1, max_length=MAX_LINES)]
    samples: Positive
    where: WhereForm


class _FrameKeys(TypedDict):
    function: str
    file: NotRequired[NonEmpty]
    line: NotRequired[Positive]
    module: NotRequired[NonEmpty]
    address: NotRequired[Positive]


class FrameForm(_FrameKeys):
    """
    A function on a stack. Keys without a known value are absent.

    Attributes:
        type: ``cuda``: native, in a CUDA library, or a call that the thread was in; ``cut``: the
            function states how many frames are left out. In ``stacks`` also ``wait``: what was
            waited for, and ``unknown``: why no code is known.
        function: Empty: no symbol is known.
        module: The file name of the library or executable.
        address: In the module.
    """

    type: Annotated[FrameType, one_of(_FRAME_TYPES)]


class StackForm(TypedDict):
    """
    Where in its program a thread was.

    Attributes:
        complete: Whether nothing is missing at the outer end.
        native: How native frames were found.
        python: How the walk of Python's frames ended.
        frames: Innermost first.
        place: The innermost frame of the program's own code; absent: not known.
    """

    complete: bool
    native: UnwindMethod
    python: PythonStatus
    frames: Annotated[list[FrameForm], Meta(max_length=MAX_FRAMES)]
    place: NotRequired[FrameForm]


class AnswerLineForm(TypedDict):
    """
    One part of the answer.

    Attributes:
        label: The question that it answers: whose fault, where, what to do, or which verdict.
        text: The answer, in a sentence.
    """

    label: NonEmpty
    text: str


class AnswerForm(TypedDict):
    """
    The answer that reports begin with.

    Attributes:
        title: What happened.
        loss: Which program lost how much time; empty: none did.
        lines: The details, the most important ones first.
        incident: The id of the incident that it is about; absent: it is about none.
    """

    title: NonEmpty
    loss: str
    lines: list[AnswerLineForm]
    incident: NotRequired[NonEmpty]


class DocumentKeys(TypedDict):
    """
    Keys of a document that ``Document`` lacks.

    Attributes:
        schema_version: It grows when a key is removed or changes its meaning.
        answer: What happened, and what to do.
        examples: Calls and gaps that took no longer than usual, and show a chronic incident. They
            are in no sum.
        evidence: The measured intervals that causes refer to, by id.
        stacks: The stacks that effects, causes and ranks refer to, by id; absent without any.
    """

    schema_version: int
    answer: AnswerForm
    examples: list[Chain]
    evidence: Mapping[NonEmpty, Evidence]
    stacks: NotRequired[Annotated[Mapping[Hex64, StackForm], Meta(min_length=1)]]


class StackKey(TypedDict, total=False):
    """
    A key of ``Cause``.

    Attributes:
        stack: Where in its program the thread was, in most samples of its own work or in its
            longest interval; absent: not known.
    """

    stack: Hex64


KEYS: Mapping[str, str] = {"size_bytes": "bytes"}
"""Names that differ: in Python they have units."""
ABSENT_WHEN_EMPTY = frozenset(
    {
        "severity_reason",
        "verdict_bounds",
        "via",
        "stack",
        "place",
        "resource",
        "note",
        "work",
        "began_before_capture",
        "failure",
        "trouble",
        "others",
    }
)
LEFT_OUT: Mapping[type, frozenset[str]] = {Evidence: frozenset({"trace_id"})}
"""Fields without a key. A span of evidence has an id of its own."""
SPREAD: Mapping[type, Any] = {Program: ProcessKeys, CodeLines: LineKeys}
"""Types of fields that become several keys of the object."""
ADDED: Mapping[type, Any] = {Document: DocumentKeys, Cause: StackKey}
"""Types with further keys."""
WRITTEN_AS: Mapping[type, Any] = {
    CallStack: Hex64,
    Failure: OutOfMemoryRow,
    Where: WhereForm,
    Window: WindowForm,
}
"""Types that are written as another type."""
BY_ID = frozenset({Chain, Evidence})
"""Types that are written as their id, except in the keys of the document itself."""
