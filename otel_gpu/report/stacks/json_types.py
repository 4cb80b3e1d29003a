"""Types of the JSON documents of ``stacks``: top stacks, and the difference of two."""

from collections.abc import Mapping
from typing import Annotated, NotRequired, TypedDict

from msgspec import Meta

from otel_gpu.formatting.field_types import Hex64, Positive, Share, Signed, one_of
from otel_gpu.report.json_types import StackForm, WindowForm
from otel_gpu.report.stacks.top_stacks import StackKind, StackMeasure

Change = Annotated[float, Meta(ge=-1, le=1)]
Measure = Annotated[str, one_of(StackMeasure)]


class ThreadForm(TypedDict):
    """A thread."""

    tid: Signed
    name: str


class CoverageForm(TypedDict):
    """
    What the stacks cover.

    Attributes:
        with_stack: Calls or waits that became spans and have a stack.
        without_stack: Calls or waits that became spans without a stack.
        stand_for: Calls that those with a stack represent: a sampled one represents as many as it
            was sampled from.
        counted: All calls, by the kernel's counters; None: not known.
        samples: Of ``cpu`` and ``wall``: samples of threads on CPUs.
        on_cpu_ns: Of ``cpu`` and ``wall``: the time that the samples represent.
        counted_on_cpu_ns: Of ``cpu`` and ``wall``: time on CPUs by the kernel's accounting; None:
            not known.
    """

    with_stack: int
    without_stack: int
    stand_for: int
    counted: int | None
    samples: NotRequired[int]
    on_cpu_ns: NotRequired[int]
    counted_on_cpu_ns: NotRequired[int | None]


class ListedStack(StackForm):
    """
    All calls of one API by one process from one place, or all its waits, samples or blocks there.

    Attributes:
        id: Equal stacks have equal ids; the attribute ``otel_gpu.stack.id`` of spans has it, too.
            All zeros: time or memory without a stack.
        thread: Where threads are separate.
        device: Of memory: the device as the process numbers it.
        name: The CUDA API; of waits what was waited for, ``run_queue`` for a CPU, ``off_cpu``: not
            known; of samples ``on_cpu``; of memory the device.
        seen: Calls or waits that became spans; or blocks.
        stand_for: Calls that those represent.
        time_ns: Of all calls that those represent.
        bytes: Of all calls that those represent.
        complete: Whether nothing is missing at the outer end.
        native: How native frames were found.
        python: How the walk of Python's frames ended.
        frames: Innermost first.
        place: The innermost frame of the program's own code; absent: not known.
    """

    id: Hex64
    pid: Signed
    service_name: str
    thread: NotRequired[ThreadForm]
    device: NotRequired[Signed]
    name: str
    seen: int
    stand_for: int
    time_ns: int
    bytes: int


class StacksDocument(TypedDict):
    """
    Where in their programs CUDA calls or waits were made, threads spent time, or memory was allocated.

    Times that end in ``_unix_ns`` are Unix time, other times are durations, both in nanoseconds.

    Attributes:
        schema_version: It grows when a key is removed or changes its meaning.
        source: The name of the recording as given, or ``live``.
        of: CUDA calls; waits of threads; the time of threads on CPUs (``cpu``, from samples), off
            them (``off-cpu``, in waits that became spans) or both (``wall``); or device memory in
            use at the end, ever allocated, or in use at the peak. Time and memory include what has
            no stack.
        by: The measure of the order.
        stacks: Those with the most.
        stacks_left_out: The number of stacks beyond the limit of the list.
        losses: What was not recorded or could not be read, by reason.
        notes: What is not known, in words.
    """

    schema_version: int
    source: str
    window: WindowForm
    of: StackKind
    by: Measure
    coverage: CoverageForm
    stacks: list[ListedStack]
    stacks_left_out: int
    losses: Mapping[str, Positive]
    notes: list[str]


class DiffSide(TypedDict):
    """
    One of the two compared sources.

    Attributes:
        total: The sum of all stacks: nanoseconds, calls or bytes.
        losses: What was not recorded or could not be read, by reason.
        notes: What is not known, in words.
    """

    source: str
    window: WindowForm
    total: int
    coverage: CoverageForm
    losses: Mapping[str, Positive]
    notes: list[str]


class _Shares(TypedDict):
    before_share: Share
    after_share: Share
    change: Change


class ChangedFrame(_Shares):
    """
    A frame, with all stacks that contain it.

    Attributes:
        change: ``after_share`` minus ``before_share``.
    """

    frame: str


class ChangedStack(_Shares):
    """
    A stack in both sources.

    Attributes:
        frames: Outermost first: the process, its thread where threads are separate, frames.
        before: Nanoseconds, calls or bytes.
        after: Nanoseconds, calls or bytes.
        change: ``after_share`` minus ``before_share``.
    """

    frames: list[str]
    before: int
    after: int


class DiffDocument(TypedDict):
    """
    Which frames and stacks have another share of the total in B than in A. Shares are parts of 1.

    Attributes:
        schema_version: It grows when a key is removed or changes its meaning.
        of: As in ``stacks --json``; so is ``by``.
        before: A.
        after: B.
        frames: The most changed first.
        frames_left_out: The number of frames beyond the limit of the list.
        stacks: The most changed first.
        stacks_left_out: The number of stacks beyond the limit of the list.
    """

    schema_version: int
    of: StackKind
    by: Measure
    before: DiffSide
    after: DiffSide
    frames: list[ChangedFrame]
    frames_left_out: int
    stacks: list[ChangedStack]
    stacks_left_out: int
