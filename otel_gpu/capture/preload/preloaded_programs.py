"""
The preloaded programs of a capture: opens, reads and closes their shared memory.

A program with the preload library counts its frequent calls itself, in shared memory (``preload/layout.h``).
The agent opens that at the first call and keeps it open, so it can read the final counts after the
program has ended.
"""

import contextlib
import os
import struct
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from otel_gpu import wire
from otel_gpu.capture.bpf.objects import BpfObject
from otel_gpu.capture.losses import AgentLoss
from otel_gpu.capture.preload.program import PreloadedProgram
from otel_gpu.capture.preload.settings import PreloadSettings
from otel_gpu.capture.preload.shared_memory import PreloadError, count_rows, open_memory
from otel_gpu.capture.preload.step_detection import PreloadDetectors
from otel_gpu.capture.probes.elf_exports import ElfSymbols
from otel_gpu.capture.processes.unread import Unread
from otel_gpu.config import Config
from otel_gpu.errors import MapFullError
from otel_gpu.limits.recent import Recent
from otel_gpu.limits.work_budget import Share, WorkBudget
from otel_gpu.options import BucketLayout
from otel_gpu.procfs.mapped_files import FileId, MappedFile, preload_memory
from otel_gpu.procfs.proc_files import stream_of
from otel_gpu.procfs.reader import read_process_file
from otel_gpu.procfs.users import user_of
from otel_gpu.stacks.read_budget import FileWork
from otel_gpu.stacks.samples import ProcessKey
from otel_gpu.wire.agent_records import Entry
from otel_gpu.wire.probe_symbols import layer_of_library

PRELOAD_THREAD: Final = "otel_gpu_preload_thread"
"""The library's function that each thread calls first."""

_MAX_REFUSED: Final = 4096
_MAX_LIBRARIES: Final = 64
_MAX_ENVIRONMENT_BYTES: Final = 1 << 20
_IS_OFF: Final = b"\0OTEL_GPU_PRELOAD=0\0"
_PID: Final = struct.Struct("<I")
_PROGRAM: Final = struct.Struct("<Q")
_KEY_PROGRAM: Final = struct.Struct("<QI")
_REFUSED: Final = 1 << wire.PRELOAD_REFUSED_BIT
# Seconds. Reading a memory of ten threads takes 0.2 ms, the largest possible one 0.2 s. A program whose
# share is used up waits for the next reading and loses nothing.
_READING: Final = Share(0.25, 0.02), Share(0.5, 0.04), Share(1.0, 0.1)
# The last reading of a process cannot wait. Small memories are read without a share.
_LAST_READING: Final = Share(0.5, 0.02), Share(1.0, 0.05), Share(2.0, 0.1)
_SMALL_ROWS: Final = 1024
# Losses that the kernel side counts as well, and those that only the preload library has.
_LOST: Final = {
    wire.PRELOAD_LOST_SERIES_FULL: wire.COUNTER_LOST_SERIES_FULL,
    wire.PRELOAD_LOST_NO_RETURN: wire.COUNTER_LOST_NO_RETURN,
    wire.PRELOAD_LOST_DETECTORS_FULL: wire.COUNTER_STEP_THREADS_RATE_LIMITED,
}
_OWN_LOST: Final = {
    wire.PRELOAD_LOST_DEPTH_EXCEEDED: AgentLoss.PRELOAD_DEPTH_EXCEEDED,
    wire.PRELOAD_LOST_SLOTS_FULL: AgentLoss.PRELOAD_SLOTS_FULL,
    wire.PRELOAD_LOST_COPIES_FULL: AgentLoss.PRELOAD_COPIES_FULL,
}


class _NoShareError(PreloadError):
    def __init__(self, rows: int) -> None:
        super().__init__(f"its user's share of reading is used up, and it has {rows:,} series")


class PreloadedPrograms:
    """
    The preloaded programs of one capture.

    Args:
        bpf: The object with the map of preloaded processes.
        config: The histogram layout and the settings of programs.
        lost: Counters by ``enum counter``, to which calls that a program could not count are added.

    Attributes:
        suits: Whether the capture's histogram layout is the preload library's; if not, nothing is read.
        lost: Losses that only the preload library has, by reason.
        periods: Steps that preloaded programs detect in their threads.
        calls: How many calls programs have counted themselves.
        unread: Programs whose memory was not read.
        is_ending: Whether the capture ends, so each reading is a program's last.
    """

    def __init__(
        self,
        bpf: BpfObject,
        config: Config,
        lost: list[int],
        *,
        unread: Unread | None = None,
        files: FileWork | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._places = bpf.map("preloaded")
        self._counters = lost
        self._preloaded: dict[ProcessKey, PreloadedProgram] = {}
        self._refused: Recent[ProcessKey, None] = Recent(_MAX_REFUSED, cache="known_processes")
        self._libraries: Recent[FileId, bool] = Recent(_MAX_LIBRARIES)
        self._settings = PreloadSettings(config)
        self._reading = WorkBudget(*_READING, clock=clock)
        self._last_reading = WorkBudget(*_LAST_READING, clock=clock)
        self._refused_now: set[ProcessKey] = set()
        self.unread = unread or Unread()
        self._files = files or FileWork()
        self.is_ending = False
        self.detectors = PreloadDetectors(lost, self._reading)
        # Programs that report every call which shows that work on a stream is complete.
        self._with_collectives: Recent[ProcessKey, None] = Recent(
            _MAX_REFUSED, cache="known_processes"
        )
        self.suits = config.histograms.layout == BucketLayout.EXPONENTIAL
        self.lost: Counter[AgentLoss] = Counter()
        self.calls = 0

    def is_preloaded(self, key: ProcessKey, mapped: Collection[MappedFile]) -> bool:
        """Whether a process counts its frequent calls itself, or will from the first one on."""
        if not self.suits or key in self._refused:
            return False
        if not self.has_library(mapped):
            return False
        if any(layer_of_library(file.name) == wire.LAYER_NCCL for file in mapped):
            self._report_collectives(key)
        environment = b"\0" + read_process_file(key[0], "environ", _MAX_ENVIRONMENT_BYTES) + b"\0"
        return _IS_OFF not in environment

    def has_library(self, mapped: Iterable[MappedFile]) -> bool:
        """Whether a process maps a preload library that carries or will carry probes."""
        return any(self._is_library(file) for file in mapped if file.is_preload_library)

    def refuse_library(self, library: FileId) -> None:
        """Let probes count all calls of programs with this library, which can carry no probe."""
        self._libraries[library] = False

    def _report_collectives(self, key: ProcessKey) -> None:
        program = self._preloaded.get(key)
        if program is not None and key not in self._with_collectives:
            program.is_asked = False  # the settings have changed
        self._with_collectives[key] = None

    def examine(self, key: ProcessKey) -> bool:
        """
        Open the memory of a process that began to count before it was watched.

        It reports calls only after ``ask``. Returns whether the preload library counts all frequent calls;
        if False, probes have to count the others.
        """
        if key in self._refused:
            return False
        address = None if key in self._preloaded else preload_memory(key[0])
        if address is not None:
            # From here on probes do not count the calls that the preload library counts.
            self._mark(key)
            if not self._open(key, address):
                return False
        program = self._preloaded.get(key)
        try:
            return program is None or program.sees_all()
        except (OSError, PreloadError):
            return True

    def open(self, key: ProcessKey, address: int) -> bool:
        """
        Open the memory at an address that a probe reported, and write its settings.

        Returns False if probes have to count the calls of this process.
        """
        if key not in self._preloaded and not self._open(key, address):
            return False
        self.ask(key)
        return not self._preloaded[key].is_closed

    def ask(self, key: ProcessKey) -> None:
        """
        Write the settings once, when there are probes for the reported calls.

        Each thread announces itself at its next call.
        """
        program = self._preloaded.get(key)
        if program is not None and not program.is_asked:
            with contextlib.suppress(OSError):
                self._write_settings(program, key)

    def _open(self, key: ProcessKey, address: int) -> bool:
        if key in self._refused:
            return False
        if not self.suits or not address:
            self.refuse(key)
            return False
        fd, uid = -1, user_of(key[0]).uid
        try:
            fd = open_memory(key[0], address)
            self._check_share(self._reading, key, uid=uid, fd=fd)
            with self._reading.paying(key, uid):
                program = PreloadedProgram(fd, address, process=key, uid=uid)
                self.detectors.add(key, fd, uid)
            self._preloaded[key] = program
        except (OSError, PreloadError) as error:
            if fd >= 0:
                os.close(fd)
            self._lose(key, uid, error=error, reason=AgentLoss.PRELOAD_UNREAD)
            self.refuse(key)
            return False
        return True

    def read(self, keys: Collection[ProcessKey] | None = None) -> dict[bytes, bytes]:
        """
        Return the series of these programs, which have ended, or of all, by the kernel side's keys.

        If a program cannot be read now, its series are those of its latest reading.
        """
        is_last = keys is not None or self.is_ending
        found: dict[bytes, bytes] = {}
        for key in self._in_turn() if keys is None else keys:
            program = self._preloaded.get(key)
            if program is None:
                continue
            if not program.is_closed:
                self._read(key, program, is_last=is_last)
            found |= program.series
        return found

    def _in_turn(self) -> list[ProcessKey]:
        # Users and processes that used the least of their share come first.
        programs = self._preloaded
        return sorted(
            programs, key=lambda key: self._reading.left(key, programs[key].uid), reverse=True
        )

    def _read(self, key: ProcessKey, program: PreloadedProgram, *, is_last: bool) -> None:
        budget = self._last_reading if is_last else self._reading
        calls = program.calls
        try:
            if is_last:
                self._check_share(budget, key, uid=program.uid, fd=program.fd)
            elif not budget.allows(key, program.uid):
                return
            with budget.paying(key, program.uid):
                self._note_lost(*program.read())
        except _NoShareError as error:
            self._lose(key, program.uid, error=error, reason=AgentLoss.PRELOAD_UNREAD)
            self._leave(key, program)
        except (OSError, PreloadError) as error:
            self._lose(key, program.uid, error=error, reason=AgentLoss.PRELOAD_REJECTED)
            self._leave(key, program)
        self.calls += program.calls - calls

    def _check_share(self, budget: WorkBudget, key: ProcessKey, uid: int, fd: int) -> None:
        if not budget.allows(key, uid):
            rows = count_rows(lambda offset, size_bytes: os.pread(fd, size_bytes, offset))
            if rows > _SMALL_ROWS:
                raise _NoShareError(rows)

    def _leave(self, key: ProcessKey, program: PreloadedProgram) -> None:
        # Close a memory for good; the counts until now stay.
        with contextlib.suppress(OSError):
            self._settings.withdraw(program.fd)
        self.detectors.leave(key, is_readable=False)
        program.close()
        self.refuse(key)
        self._refused_now.add(key)

    def take_refused(self) -> set[ProcessKey]:
        """Return programs whose memory was closed since the previous call, so probes have to count."""
        refused, self._refused_now = self._refused_now, set()
        return refused

    def divide_times(
        self,
        entries: Iterable[Entry],
        booked_ktime_ns: tuple[int, int],
        keys: Collection[ProcessKey] | None = None,
    ) -> Iterator[Entry]:
        """
        Yield time-accounting entries with the CPU time of preloaded programs divided.

        Of these ``keys``, which have ended, or of all programs; the other entries are unchanged. See
        ``PreloadTimes.divide`` for ``booked_ktime_ns``.
        """
        known = self._preloaded.keys() if keys is None else self._preloaded.keys() & set(keys)
        of_programs: dict[ProcessKey, list[Entry]] = {key: [] for key in known}
        for entry in entries:
            program_ktime_ns, pid = _KEY_PROGRAM.unpack_from(entry[0])
            if (found := of_programs.get((pid, program_ktime_ns))) is not None:
                found.append(entry)
            else:
                yield entry
        for key, found in of_programs.items():
            yield from self._divide(
                key, program=self._preloaded[key], entries=found, booked_ktime_ns=booked_ktime_ns
            )

    def _divide(
        self,
        key: ProcessKey,
        program: PreloadedProgram,
        entries: list[Entry],
        booked_ktime_ns: tuple[int, int],
    ) -> list[Entry]:
        is_new = self._reading.allows(key, program.uid)
        try:
            with self._reading.paying(key, program.uid):
                return program.divide_times(entries, booked_ktime_ns, is_new=is_new)
        except (OSError, PreloadError):
            return entries  # The next reading of the series reports the error.

    def still_open(
        self, key: ProcessKey, slot: int, calls: Sequence[dict[str, object]]
    ) -> list[dict[str, Any]]:
        """
        Return which of a thread's open calls (``struct open_call``) are still open.

        For calls that the preload library counts, the kernel side notices the end only when the thread leaves
        the CPU.
        """
        program = self._preloaded.get(key)
        published = program.open_calls(slot) if program else []
        ended = {call["start_ktime_ns"] for call in calls if call["is_published"]}
        ended.difference_update(published)
        return [call for call in calls if call["start_ktime_ns"] not in ended]

    def set_thresholds(self, thresholds: Mapping[tuple[int, int, int, int], int]) -> None:
        """Set the durations in ns from which calls and gaps are reported, by ``threshold_key``."""
        by_program: dict[ProcessKey, dict[tuple[int, int], int]] = {
            key: {} for key in self._preloaded
        }
        for (ktime_ns, pid, api, copy_kind), threshold_ns in thresholds.items():
            if (of_program := by_program.get((pid, ktime_ns))) is not None:
                of_program[api, copy_kind] = threshold_ns
        for key, program in self._preloaded.items():
            with contextlib.suppress(OSError):
                self._write_settings(program, key, by_program[key])

    def keys(self) -> set[ProcessKey]:
        """Return all preloaded programs, including those that are not read any more."""
        return set(self._preloaded)

    def close(self, keys: Iterable[ProcessKey] | None = None) -> None:
        """Close the memory of programs that ended, or of all."""
        for key in list(self._preloaded) if keys is None else keys:
            if (program := self._preloaded.pop(key, None)) is not None:
                if keys is None:
                    with contextlib.suppress(OSError):
                        self._settings.withdraw(program.fd)
                else:
                    self._counters[wire.COUNTER_LOST_EXIT_INSIDE_CALL] += program.calls_inside()
                    self.detectors.leave(key)
                program.close()
        if keys is None:
            self.detectors.close()

    def _write_settings(
        self,
        program: PreloadedProgram,
        key: ProcessKey,
        thresholds: Mapping[tuple[int, int], int] | None = None,
    ) -> None:
        collectives = key in self._with_collectives
        self._settings.write(program.fd, thresholds or {}, collectives=collectives)
        program.is_asked = True

    def _is_library(self, mapped: MappedFile) -> bool:
        if mapped.file not in self._libraries:
            try:
                with (
                    self._files.reading(mapped.pid, mapped.path),
                    stream_of(self._files.open(mapped)) as stream,
                ):
                    names = {name for name, _ in ElfSymbols(stream).functions}
            except (OSError, ValueError):
                return False
            self._libraries[mapped.file] = PRELOAD_THREAD in names
        return self._libraries[mapped.file]

    def _note_lost(self, lost: list[int], rejected: int) -> None:
        for loss, times in enumerate(lost):
            if loss == wire.PRELOAD_LOST_BOUND_PAST:
                continue  # Probes count these calls.
            if times and loss in _LOST:
                self._counters[_LOST[loss]] += times
            elif times:
                self.lost[_OWN_LOST.get(loss, AgentLoss.PRELOAD_OTHER)] += times
        if rejected:
            self.lost[AgentLoss.PRELOAD_REJECTED] += rejected

    def _lose(self, key: ProcessKey, uid: int, error: Exception, reason: AgentLoss) -> None:
        self.unread.add(key[0], uid, what="what it counts itself", reason=str(error))
        self.lost[reason] += 1

    def _mark(self, key: ProcessKey, flags: int = 0) -> None:
        try:
            self._places.update(_PID.pack(key[0]), _PROGRAM.pack(key[1] | flags))
        except MapFullError:
            self._counters[wire.COUNTER_LOST_PROCESSES_FULL] += 1

    def refuse(self, key: ProcessKey) -> None:
        """Let probes count all calls of a process."""
        self._refused[key] = None
        self._mark(key, _REFUSED)
