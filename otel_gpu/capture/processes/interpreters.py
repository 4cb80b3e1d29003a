"""
Finds the runtime state of Python interpreters, and the layout of their frames.

CPython's ``_PyRuntime`` contains the GIL (3.10 and 3.11), or the main interpreter with its GIL (3.12 and later).
A thread that waits on a futex at an address inside it waits for the GIL. From it the kernel side also finds
the frames of a thread. Frames are trusted once their layout was verified in this process, or in another
one that runs the same file.
"""

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import BinaryIO, NamedTuple, Protocol

from otel_gpu import wire
from otel_gpu.capture.probes.elf_exports import ElfSymbols
from otel_gpu.limits.recent import Recent
from otel_gpu.procfs.mapped_files import FileId, MappedFile, mappings_of, program_path
from otel_gpu.procfs.proc_files import stream_of
from otel_gpu.procfs.process_memory import memory_of
from otel_gpu.procfs.process_root import ServedError
from otel_gpu.stacks.python.interpreter_memory import LayoutVerdict, check
from otel_gpu.stacks.python.layouts import OFFSETS_BYTES, UNKNOWN, InterpreterLayout, layout_of
from otel_gpu.stacks.read_budget import FileWork, NotReadError
from otel_gpu.stacks.samples import ProcessKey

# With the version, if the name contains it; "t" is free-threaded, "d" is a debug build.
_HOLDS_INTERPRETER = re.compile(r"^(?:libpython(3[^/]*)\.so[^/]*|python(3?(?:\.\d+)?)[td]*)$")
_SYMBOL = "_PyRuntime"
_VERSION_SYMBOL = "Py_Version"  # since 3.11
_SYMBOLS = (f"{_SYMBOL}\0".encode(), f"{_VERSION_SYMBOL}\0".encode())
_3_10 = 0x030A0000
_VERSION_BYTES = 8
# A process runs while it is read, so a single failure can be bad luck.
_MAX_FAILURES = 30
_MAX_READS_AT_ONCE = 5
# An interpreter that has just started has no frames yet, which is not reported.
_TRIES_BEFORE_REPORT = 30
_MAX_NEWS = 64
_MAX_PLACES = 256
# Between checks while samples wait for the result.
_RETRY_S = 0.05
_MAX_FORGOTTEN = 4096

_logger = logging.getLogger(__name__)


class _Place(NamedTuple):
    # The symbol ``_PyRuntime`` of a file.
    # ``distances``: from each page at which a code segment begins, by the page's file offset.
    # ``reason``: why ``layout`` is UNKNOWN.

    distances: Mapping[int, int]
    size_bytes: int
    layout: InterpreterLayout
    reason: str


class Diagnosis(NamedTuple):
    """
    Whether the frames of an interpreter can be walked.

    ``good``: yes; ``early``: it has no frames yet; ``bad``: memory does not have the layout of the version;
    ``unknown``: the layout of this version or build is unknown. ``version`` is empty when ``unknown``, and
    ``reason`` when ``good``.
    """

    kind: LayoutVerdict
    version: str
    reason: str


class _Interpreter(NamedTuple):
    # The interpreter of a process.
    # ``is_settled``: its layout was verified, or verification has failed too often. ``reason``: why
    # frames are not walked; empty when they are.

    program_ktime_ns: int
    file: FileId
    start: int
    end: int
    layout: InterpreterLayout
    is_settled: bool
    reason: str
    failures: int = 0
    tries: int = 0
    looked_s: float = 0.0


class _KernelSide(Protocol):
    def set_interpreter(self, pid: int, interpreter: bytes) -> None: ...

    def forget_interpreter(self, pid: int) -> None: ...


class Interpreters:
    """
    Sends the interpreters of processes to the kernel side.

    With ``in_advance``, layouts are sent before they are verified. Then frames must be used only if
    ``trusts`` returns True.
    """

    def __init__(
        self,
        programs: _KernelSide,
        *,
        in_advance: bool = False,
        clock: Callable[[], float] = time.monotonic,
        work: FileWork | None = None,
    ) -> None:
        self._programs = programs
        self._work = work or FileWork()
        self._in_advance = in_advance
        self._clock = clock
        self._true: set[FileId] = set()
        # Whether frames were trusted, and whether they could not be read.
        self._forgotten: Recent[ProcessKey, tuple[bool, bool]] = Recent(
            _MAX_FORGOTTEN, cache="known_processes"
        )
        self._places: dict[FileId, _Place | None] = {}
        self._known: dict[int, _Interpreter] = {}
        self._news: dict[str, int] = {}

    def __contains__(self, pid: int) -> bool:
        """Whether a process has a known interpreter."""
        return pid in self._known

    @property
    def news(self) -> Mapping[str, int]:
        """Reasons why frames are not walked, each with the first pid."""
        return dict(self._news)

    @property
    def reasons(self) -> Mapping[int, str]:
        """Why frames are not walked, by pid."""
        return {pid: known.reason for pid, known in self._known.items() if known.reason}

    def examine(self, pid: int, program_ktime_ns: int, files: Iterable[MappedFile]) -> None:
        """Search the interpreter in a process's mapped files, or verify the one that was found."""
        known = self._known.get(pid)
        if known is None or known.program_ktime_ns != program_ktime_ns:
            known = self._find(program_ktime_ns, files)
            if known is None:
                return
            self._push(pid, known)
        self._settle(pid, known)

    def trusts(self, process: ProcessKey) -> bool | None:
        """Whether the frames of a program are valid; None: unknown yet."""
        pid, program_ktime_ns = process
        known = self._known.get(pid)
        if known is None or known.program_ktime_ns != program_ktime_ns:
            return self._forgotten.get(process, (False, False))[0]
        if not known.is_settled and self._clock() - known.looked_s >= _RETRY_S:
            self._settle(pid, known)
            known = self._known[pid]
        return not known.reason if known.is_settled else None

    def is_unusable(self, process: ProcessKey) -> bool:
        """Whether a program has an interpreter whose frames cannot be read, for a known reason."""
        pid, program_ktime_ns = process
        known = self._known.get(pid)
        if known is None or known.program_ktime_ns != program_ktime_ns:
            return self._forgotten.get(process, (False, False))[1]
        return known.is_settled and bool(known.reason)

    def examine_again(self) -> None:
        """Verify layouts that are still unverified, for lack of frames."""
        for pid, known in list(self._known.items()):
            self._settle(pid, known)

    def inherit(self, parent_pid: int, child_pid: int, program_ktime_ns: int) -> None:
        """Give a forked child its parent's interpreter."""
        known = self._known.get(parent_pid)
        if known is not None:
            self._push(child_pid, known._replace(program_ktime_ns=program_ktime_ns))

    def forget(self, pid: int) -> None:
        """Forget a process that ended or executed another program."""
        known = self._known.pop(pid, None)
        if known is not None:
            # Its samples can still come.
            is_unusable = known.is_settled and bool(known.reason)
            self._forgotten[pid, known.program_ktime_ns] = (not known.reason, is_unusable)
            self._programs.forget_interpreter(pid)

    def _find(self, program_ktime_ns: int, files: Iterable[MappedFile]) -> _Interpreter | None:
        found = _locate(files, self._places, self._work)
        if found is None:
            return None
        place, start, file = found
        # Inodes are reused, so this is evicted together with the places.
        self._true &= self._places.keys()
        is_true = file in self._true
        return _Interpreter(
            program_ktime_ns=program_ktime_ns,
            file=file,
            start=start,
            end=start + place.size_bytes,
            layout=place.layout,
            is_settled=is_true or place.layout == UNKNOWN,
            reason="" if is_true else place.reason or "its layout was not checked yet",
        )

    def _settle(self, pid: int, known: _Interpreter) -> None:
        if known.is_settled:
            self._report(pid, known)
            return
        with memory_of(pid) as read:
            verdict = check(known.layout, known.start, read)
        failures = known.failures + (verdict.kind == LayoutVerdict.BAD)
        self._known[pid] = settled = known._replace(
            is_settled=verdict.kind == LayoutVerdict.GOOD or failures == _MAX_FAILURES,
            reason=verdict.reason,
            failures=failures,
            tries=known.tries + 1,
            looked_s=self._clock(),
        )
        if verdict.kind == LayoutVerdict.GOOD:
            self._true.add(known.file)
        if settled.is_settled:
            self._push(pid, settled)
        if settled.reason and (settled.is_settled or settled.tries >= _TRIES_BEFORE_REPORT):
            self._report(pid, settled)

    def _report(self, pid: int, known: _Interpreter) -> None:
        # Workers of one program share a reason.
        if known.reason and known.reason not in self._news and len(self._news) < _MAX_NEWS:
            self._news[known.reason] = pid
            _logger.info(
                "Python frames of process %d are not in its stacks: %s; "
                "otel-gpu doctor --pid %d says what can be done",
                pid,
                known.reason,
                pid,
            )

    def _push(self, pid: int, known: _Interpreter) -> None:
        self._known[pid] = known
        is_usable = not known.reason or (self._in_advance and not known.is_settled)
        layout = known.layout if is_usable else UNKNOWN
        self._programs.set_interpreter(
            pid, wire.INTERPRETER.pack(known.program_ktime_ns, known.start, known.end, *layout)
        )


def diagnose(pid: int, files: Iterable[MappedFile]) -> Diagnosis | None:
    """
    Check whether a capture that starts now would get the Python frames of a process.

    ``files`` are all of its mapped files. None: it maps no interpreter.
    """
    found = _locate(files, {}, FileWork())
    if found is None:
        return None
    place, start, _ = found
    if place.layout == UNKNOWN:
        return Diagnosis(LayoutVerdict.UNKNOWN, "", place.reason)
    for _ in range(_MAX_READS_AT_ONCE):
        with memory_of(pid) as read:
            verdict = check(place.layout, start, read)
        if verdict.kind != LayoutVerdict.BAD:
            break
    version = f"{place.layout.version >> 8}.{place.layout.version & 0xFF}"
    return Diagnosis(verdict.kind, version, verdict.reason)


def _locate(
    files: Iterable[MappedFile], places: dict[FileId, _Place | None], work: FileWork
) -> tuple[_Place, int, FileId] | None:
    program: str | None = None
    for mapped in files:
        if program is None:
            program = program_path(mapped.pid)
        # The executable can contain an interpreter, whatever its name.
        if not (_HOLDS_INTERPRETER.match(mapped.name) or mapped.path == program):
            continue
        # Inodes are reused.
        if mapped.file not in places and len(places) >= _MAX_PLACES:
            places.clear()
        if mapped.file not in places:
            try:
                with work.reading(mapped.pid, mapped.path):
                    places[mapped.file] = _find(mapped, work)
            except (NotReadError, ServedError):
                continue
        place = places[mapped.file]
        start = None if place is None else _start(place, mapped)
        if place is not None and start is not None:
            return place, start, mapped.file
    return None


def _find(mapped: MappedFile, work: FileWork) -> _Place | None:
    try:
        with stream_of(work.open(mapped)) as stream:
            symbols = ElfSymbols(stream, _SYMBOLS)
            if _SYMBOL not in symbols.addresses:
                return None
            layout, reason = _read_layout(stream, symbols, mapped.name)
    except ServedError:
        raise  # Not cached, because its inode can soon be another file's.
    except (OSError, ValueError):
        return None
    address = symbols.addresses[_SYMBOL]
    distances = {offset: address - page for offset, page in symbols.code_pages.items()}
    return _Place(distances, size_bytes=symbols.sizes[_SYMBOL], layout=layout, reason=reason)


def _start(place: _Place, mapped: MappedFile) -> int | None:
    for mapping in chain((mapped,), mappings_of(mapped)):
        distance = place.distances.get(mapping.file_offset)
        if distance is not None:
            return mapping.start + distance
    return None


def _read_layout(stream: BinaryIO, symbols: ElfSymbols, name: str) -> tuple[InterpreterLayout, str]:
    version_hex = int.from_bytes(
        _read(stream, symbols, symbol=_VERSION_SYMBOL, size_bytes=_VERSION_BYTES), "little"
    )
    found = _HOLDS_INTERPRETER.match(name)
    if not version_hex and found and any(part.startswith("3.10") for part in found.groups("")):
        version_hex = _3_10
    if not version_hex:
        return UNKNOWN, f"{name} does not state its version"
    try:
        return layout_of(
            version_hex, _read(stream, symbols, symbol=_SYMBOL, size_bytes=OFFSETS_BYTES)
        ), ""
    except ValueError as error:
        return UNKNOWN, str(error)


def _read(stream: BinaryIO, symbols: ElfSymbols, symbol: str, size_bytes: int) -> bytes:
    address = symbols.addresses.get(symbol)
    offset = None if address is None else symbols.file_offset(address)
    if offset is None:
        return b""
    stream.seek(offset)
    return stream.read(size_bytes)
