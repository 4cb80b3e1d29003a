"""The state of all threads of a process at one time: the document of ``stacks --now``."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypedDict

from otel_gpu.enrich.identity.identities import CallStack
from otel_gpu.enrich.stack_text import stack_id_text
from otel_gpu.enrich.waits.reasons import WaitReason
from otel_gpu.formatting.field_types import Hex64
from otel_gpu.report.json_form import stack_form
from otel_gpu.report.json_types import StackForm
from otel_gpu.wire.thread_states import ThreadState

SCHEMA_VERSION = 1

_ORDER = tuple(ThreadState)


class ThreadNow(NamedTuple):
    """
    One thread.

    Attributes:
        reason: The reason of its wait, if it is blocked; else ``NONE``.
        is_interruptible: False: no signal ends its wait.
        time_in_state_ns: Time in this state, at least; None: not known.
        is_late: Its stack is from its last entry into the kernel, usually a tick ago at most.
        calls: Names of the CUDA calls that it is in, outermost first.
        stack: None: its user stack could not be read.
        kernel_functions: Innermost first; empty: it is not in the kernel, or on a CPU.
    """

    pid: int
    tid: int
    comm: str
    state: ThreadState
    reason: WaitReason
    is_interruptible: bool
    time_in_state_ns: int | None
    is_late: bool
    calls: tuple[str, ...]
    stack: CallStack | None
    kernel_functions: tuple[str, ...]


class ThreadsReport(NamedTuple):
    """
    All threads of some processes; ``processes`` has names by pid, ``took_ns`` the time of the dump.
    """

    processes: Mapping[int, str]
    unix_ns: int
    took_ns: int
    threads: Sequence[ThreadNow]
    notes: Sequence[str]

    @property
    def unreadable(self) -> int:
        """The number of threads whose user stack could not be read."""
        return sum(thread.stack is None for thread in self.threads)

    @property
    def incomplete(self) -> int:
        """The number of threads with an incomplete stack."""
        return sum(
            thread.stack is not None and not thread.stack.complete for thread in self.threads
        )


def group_threads(threads: Iterable[ThreadNow]) -> list[Sequence[ThreadNow]]:
    """
    Group threads with the same state, calls and stack.

    Threads in CUDA calls come first, then by state; within these the largest groups.
    """
    groups: dict[object, list[ThreadNow]] = {}
    for thread in threads:
        stack = thread.stack and thread.stack.id
        what = (thread.state, thread.reason, thread.is_interruptible, thread.is_late)
        key = (thread.pid, *what, thread.calls, stack, thread.kernel_functions)
        groups.setdefault(key, []).append(thread)
    return sorted(groups.values(), key=_rank)


def _rank(group: Sequence[ThreadNow]) -> tuple[bool, int, int, int]:
    first = group[0]
    return (not first.calls, _ORDER.index(first.state), -len(group), first.tid)


class ProcessName(TypedDict):
    """A process."""

    pid: int
    name: str


class DumpedThread(TypedDict):
    """
    A thread at the time of the dump.

    Attributes:
        reason: Why a blocked thread waits; None: it does not.
        interruptible: False: no signal ends its wait.
        time_in_state_ns: Time in this state, at least; None: not known.
        exact: False: it was on a CPU, and its stack is from its last entry into the kernel.
        cuda_calls: The CUDA calls that it is in, outermost first.
        stack: A key of ``stacks``; None: it could not be read.
        kernel_stack: Functions of the kernel, innermost first.
    """

    pid: int
    tid: int
    name: str
    state: ThreadState
    reason: WaitReason | None
    interruptible: bool
    time_in_state_ns: int | None
    exact: bool
    cuda_calls: list[str]
    stack: Hex64 | None
    kernel_stack: list[str]


class ThreadsDocument(TypedDict):
    """
    All threads of some processes at one time. Names are those of the processes, and can be anything.

    Attributes:
        schema_version: It grows when a key is removed or changes its meaning.
        unix_ns: When the dump began.
        took_ns: The time that it took.
        stacks: User stacks by id.
        unreadable: The number of threads whose user stack could not be read.
        incomplete: The number of threads with an incomplete stack.
        notes: What is not known, in words.
    """

    schema_version: int
    unix_ns: int
    took_ns: int
    processes: list[ProcessName]
    threads: list[DumpedThread]
    stacks: Mapping[Hex64, StackForm]
    unreadable: int
    incomplete: int
    notes: list[str]


def make_threads_document(report: ThreadsReport) -> ThreadsDocument:
    """Return the document as plain JSON values."""
    stacks = {thread.stack.id: thread.stack for thread in report.threads if thread.stack}
    return {
        "schema_version": SCHEMA_VERSION,
        "unix_ns": report.unix_ns,
        "took_ns": report.took_ns,
        "processes": [{"pid": pid, "name": name} for pid, name in report.processes.items()],
        "threads": [_thread(thread) for thread in report.threads],
        "stacks": {stack_id_text(number): stack_form(stack) for number, stack in stacks.items()},
        "unreadable": report.unreadable,
        "incomplete": report.incomplete,
        "notes": list(report.notes),
    }


def _thread(thread: ThreadNow) -> DumpedThread:
    return {
        "pid": thread.pid,
        "tid": thread.tid,
        "name": thread.comm,
        "state": thread.state,
        "reason": thread.reason or None,
        "interruptible": thread.is_interruptible,
        "time_in_state_ns": thread.time_in_state_ns,
        "exact": not thread.is_late,
        "cuda_calls": list(thread.calls),
        "stack": stack_id_text(thread.stack.id) if thread.stack else None,
        "kernel_stack": list(thread.kernel_functions),
    }
