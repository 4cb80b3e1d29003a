"""
Watched programs that count their own calls: their memory is opened, read, and closed at their end.

A program that preloads our library counts its hot calls itself, in memory that it shares
(``preload/layout.h``). The agent keeps that open from the first call on, so that what the program has
counted until its end can still be read when it is gone.
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
from otel_gpu.capture.preload.program import PreloadedProgram
from otel_gpu.capture.preload.settings import PreloadSettings
from otel_gpu.capture.preload.shared_memory import PreloadError, count_rows, open_memory
from otel_gpu.capture.preload.step_detection import PreloadRhythms
from otel_gpu.capture.probes.elf_exports import ElfSymbols
from otel_gpu.capture.processes.unread import Unread
from otel_gpu.config import Config
from otel_gpu.errors import MapFullError
from otel_gpu.limits.recent import Recent
from otel_gpu.limits.work_budget import Share, WorkBudget
from otel_gpu.procfs.mapped_files import FileId, MappedFile, preload_memory
from otel_gpu.procfs.proc_files import stream_of
from otel_gpu.procfs.reader import read_process_file
from otel_gpu.procfs.users import user_of
from otel_gpu.stacks.read_budget import FileWork
from otel_gpu.stacks.samples import Image
from otel_gpu.wire.agent_records import Entry
from otel_gpu.wire.probe_symbols import layer_of_library

PRELOAD_THREAD: Final = "otel_gpu_preload_thread"
"""The function of the library that each thread calls first."""

_MAX_REFUSED: Final = 4096
_MAX_LIBRARIES: Final = 64
_MAX_ENVIRONMENT_BYTES: Final = 1 << 20
_IS_OFF: Final = b"\0OTEL_GPU_PRELOAD=0\0"
_PID: Final = struct.Struct("<I")
_IMAGE: Final = struct.Struct("<Q")
_KEY_IMAGE: Final = struct.Struct("<QI")
_REFUSED: Final = 1 << wire.PRELOAD_REFUSED_BIT
# Seconds. A memory of ten threads takes 0.2 ms, and the largest that there can be 0.2 s. Who is at the
# end of a share waits for the next reading, and loses nothing.
_READING: Final = Share(0.25, 0.02), Share(0.5, 0.04), Share(1.0, 0.1)
# The last reading of a process cannot wait. Small ones need no share.
_LAST_READING: Final = Share(0.5, 0.02), Share(1.0, 0.05), Share(2.0, 0.1)
_SMALL_ROWS: Final = 1024
# Losses of the preload library that the kernel side has too, and those that only it has.
_LOST: Final = {
    wire.PRELOAD_LOST_SERIES_FULL: wire.COUNTER_LOST_SERIES_FULL,
    wire.PRELOAD_LOST_NO_RETURN: wire.COUNTER_LOST_NO_RETURN,
    wire.PRELOAD_LOST_RHYTHMS_FULL: wire.COUNTER_RHYTHMS_WITHHELD,
}
_OWN_LOST: Final = {
    wire.PRELOAD_LOST_DEPTH_EXCEEDED: "preload_depth_exceeded",
    wire.PRELOAD_LOST_SLOTS_FULL: "preload_slots_full",
    wire.PRELOAD_LOST_COPIES_FULL: "preload_copies_full",
}

LOST_BY_PRELOAD: Final = ("preload_unread", "preload_rejected", *_OWN_LOST.values())
"""The reasons of losses that only the preload library has."""


class _NoShareError(PreloadError):
    def __init__(self, rows: int) -> None:
        super().__init__(f"its user's share of reading is used up, and it has {rows:,} series")


class PreloadedPrograms:
    """
    The preloaded programs of one capture.

    Args:
        bpf: The object with the map of processes that have one.
        config: The histogram layout, which is that of the preload library unless it was changed.
        lost: By ``enum counter``; calls that a program could not count are added.

    Attributes:
        suits: Whether the preload library counts in the histograms of this capture; if not, none is read.
        lost: Losses that only the preload library has, by reason.
        rhythms: Steps that preloaded programs detect in their threads.
        calls: How many calls programs have counted themselves.
        unread: Whose memory was not read.
        is_ending: Whether the capture ends: what is read of a process now is the last of it.
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
        self._preloaded: dict[Image, PreloadedProgram] = {}
        self._refused: Recent[Image, None] = Recent(_MAX_REFUSED)
        self._libraries: Recent[FileId, bool] = Recent(_MAX_LIBRARIES)
        self._settings = PreloadSettings(config)
        self._reading = WorkBudget(*_READING, clock=clock)
        self._last_reading = WorkBudget(*_LAST_READING, clock=clock)
        self._refused_now: set[Image] = set()
        self.unread = unread or Unread()
        self._files = files or FileWork()
        self.is_ending = False
        self.rhythms = PreloadRhythms(lost, self._reading)
        # These processes report every call that says that work on a stream is done.
        self._with_collectives: Recent[Image, None] = Recent(_MAX_REFUSED)
        self.suits = config.histograms.layout == "exponential"
        self.lost: Counter[str] = Counter()
        self.calls = 0

    def is_preloaded(self, image: Image, mapped: Collection[MappedFile]) -> bool:
        """Say whether a process counts hot calls itself, or will do so from the first on."""
        if not self.suits or image in self._refused:
            return False
        if not self.has_library(mapped):
            return False
        if any(layer_of_library(file.name) == wire.LAYER_NCCL for file in mapped):
            self._report_collectives(image)
        environment = b"\0" + read_process_file(image[0], "environ", _MAX_ENVIRONMENT_BYTES) + b"\0"
        return _IS_OFF not in environment

    def has_library(self, mapped: Iterable[MappedFile]) -> bool:
        """Say whether a process maps a preload library that carries probes, or will."""
        return any(self._is_library(file) for file in mapped if file.is_preload_library)

    def refuse_library(self, library: FileId) -> None:
        """Read nothing of programs with this library, which carries no probe: probes have to count."""
        self._libraries[library] = False

    def _report_collectives(self, image: Image) -> None:
        program = self._preloaded.get(image)
        if program is not None and image not in self._with_collectives:
            program.is_asked = False  # for less than this
        self._with_collectives[image] = None

    def examine(self, image: Image) -> bool:
        """
        Open the memory of a process that has begun to count before we could see it begin.

        It reports no calls before ``ask``. Returns whether the preload library counts all its hot calls, as
        far as is known; False: probes have to count the others.
        """
        if image in self._refused:
            return False
        address = None if image in self._preloaded else preload_memory(image[0])
        if address is not None:
            # From here on no probe counts the calls that the preload library counts.
            self._say(image)
            if not self._open(image, address):
                return False
        program = self._preloaded.get(image)
        try:
            return program is None or program.sees_all()
        except (OSError, PreloadError):
            return True

    def open(self, image: Image, address: int) -> bool:
        """
        Open the memory at an address that a probe reported, and ask.

        False: probes have to count the calls of this process.
        """
        if image not in self._preloaded and not self._open(image, address):
            return False
        self.ask(image)
        return not self._preloaded[image].is_closed

    def ask(self, image: Image) -> None:
        """
        Write which calls to report, unless that was done, now that there are probes that see them.

        Each thread says at its next call that it counts its calls.
        """
        program = self._preloaded.get(image)
        if program is not None and not program.is_asked:
            with contextlib.suppress(OSError):
                self._write_settings(program, image)

    def _open(self, image: Image, address: int) -> bool:
        if image in self._refused:
            return False
        if not self.suits or not address:
            self.refuse(image)
            return False
        fd, uid = -1, user_of(image[0]).uid
        try:
            fd = open_memory(image[0], address)
            self._check_share(self._reading, image, uid, fd)
            with self._reading.paying(image, uid):
                program = PreloadedProgram(fd, address, image, uid)
                self.rhythms.add(image, fd, uid)
            self._preloaded[image] = program
        except (OSError, PreloadError) as error:
            if fd >= 0:
                os.close(fd)
            self._lose(image, uid, error, "preload_unread")
            self.refuse(image)
            return False
        return True

    def read(self, images: Collection[Image] | None = None) -> dict[bytes, bytes]:
        """
        Return the series of these images, which have ended, or of all, by the keys of the kernel side.

        Of one that cannot be read now the series are as they were when it was read last.
        """
        is_last = images is not None or self.is_ending
        found: dict[bytes, bytes] = {}
        for image in self._in_turn() if images is None else images:
            program = self._preloaded.get(image)
            if program is None:
                continue
            if not program.is_closed:
                self._read(image, program, is_last=is_last)
            found |= program.series
        return found

    def _in_turn(self) -> list[Image]:
        """Return all images: first those of users, and of processes, who took least of our time."""
        programs = self._preloaded
        return sorted(
            programs, key=lambda image: self._reading.left(image, programs[image].uid), reverse=True
        )

    def _read(self, image: Image, program: PreloadedProgram, *, is_last: bool) -> None:
        budget = self._last_reading if is_last else self._reading
        calls = program.calls
        try:
            if is_last:
                self._check_share(budget, image, program.uid, program.fd)
            elif not budget.allows(image, program.uid):
                return
            with budget.paying(image, program.uid):
                self._note_lost(*program.read())
        except _NoShareError as error:
            self._lose(image, program.uid, error, "preload_unread")
            self._leave(image, program)
        except (OSError, PreloadError) as error:
            self._lose(image, program.uid, error, "preload_rejected")
            self._leave(image, program)
        self.calls += program.calls - calls

    def _check_share(self, budget: WorkBudget, image: Image, uid: int, fd: int) -> None:
        if not budget.allows(image, uid):
            rows = count_rows(lambda offset, size_bytes: os.pread(fd, size_bytes, offset))
            if rows > _SMALL_ROWS:
                raise _NoShareError(rows)

    def _leave(self, image: Image, program: PreloadedProgram) -> None:
        """Read nothing any more of a memory; what it has counted until now stays."""
        with contextlib.suppress(OSError):
            self._settings.withdraw(program.fd)
        self.rhythms.leave(image, is_readable=False)
        program.close()
        self.refuse(image)
        self._refused_now.add(image)

    def take_refused(self) -> set[Image]:
        """Return the images whose memory is read no more, since this was asked: probes have to count."""
        refused, self._refused_now = self._refused_now, set()
        return refused

    def divide_times(
        self,
        entries: Iterable[Entry],
        booked_ktime_ns: tuple[int, int],
        images: Collection[Image] | None = None,
    ) -> Iterator[Entry]:
        """
        Yield the time account, booked between these moments, with what preloaded programs know of it.

        That is of all images, or of these, which have ended.
        """
        known = self._preloaded.keys() if images is None else self._preloaded.keys() & set(images)
        of_programs: dict[Image, list[Entry]] = {image: [] for image in known}
        for entry in entries:
            program_ktime_ns, pid = _KEY_IMAGE.unpack_from(entry[0])
            if (found := of_programs.get((pid, program_ktime_ns))) is not None:
                found.append(entry)
            else:
                yield entry
        for image, found in of_programs.items():
            yield from self._divide(image, self._preloaded[image], found, booked_ktime_ns)

    def _divide(
        self,
        image: Image,
        program: PreloadedProgram,
        entries: list[Entry],
        booked_ktime_ns: tuple[int, int],
    ) -> list[Entry]:
        is_new = self._reading.allows(image, program.uid)
        try:
            with self._reading.paying(image, program.uid):
                return program.divide_times(entries, booked_ktime_ns, is_new=is_new)
        except (OSError, PreloadError):
            return entries  # The next reading of its series says so.

    def still_open(
        self, image: Image, slot: int, calls: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """
        Return which of a thread's open calls, as ``open_call`` has them, are open now.

        The kernel side learns of the end of a call that the preload library publishes when the thread leaves
        the CPU.
        """
        program = self._preloaded.get(image)
        published = program.open_calls(slot) if program else []
        ended = {call["start_ktime_ns"] for call in calls if call["is_published"]}
        ended.difference_update(published)
        return [call for call in calls if call["start_ktime_ns"] not in ended]

    def set_thresholds(self, thresholds: Mapping[tuple[int, int, int, int], int]) -> None:
        """Have calls and gaps reported that take so long in ns, by the fields of ``threshold_key``."""
        of_images: dict[Image, dict[tuple[int, int], int]] = {
            image: {} for image in self._preloaded
        }
        for (ktime_ns, pid, api, copy_kind), threshold_ns in thresholds.items():
            if (of_image := of_images.get((pid, ktime_ns))) is not None:
                of_image[api, copy_kind] = threshold_ns
        for image, program in self._preloaded.items():
            with contextlib.suppress(OSError):
                self._write_settings(program, image, of_images[image])

    def images(self) -> set[Image]:
        """Return the images that count their own calls, also those that are not read any more."""
        return set(self._preloaded)

    def close(self, images: Iterable[Image] | None = None) -> None:
        """Close the memory of images that ended, or of all."""
        for image in list(self._preloaded) if images is None else images:
            if (program := self._preloaded.pop(image, None)) is not None:
                if images is None:
                    with contextlib.suppress(OSError):
                        self._settings.withdraw(program.fd)
                else:
                    self._counters[wire.COUNTER_LOST_EXIT_INSIDE_CALL] += program.calls_inside()
                    self.rhythms.leave(image)
                program.close()
        if images is None:
            self.rhythms.close()

    def _write_settings(
        self,
        program: PreloadedProgram,
        image: Image,
        thresholds: Mapping[tuple[int, int], int] | None = None,
    ) -> None:
        collectives = image in self._with_collectives
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
                continue  # Probes count what goes past.
            if times and loss in _LOST:
                self._counters[_LOST[loss]] += times
            elif times:
                self.lost[_OWN_LOST.get(loss, "preload_other")] += times
        if rejected:
            self.lost["preload_rejected"] += rejected

    def _lose(self, image: Image, uid: int, error: Exception, reason: str) -> None:
        self.unread.add(image[0], uid, "what it counts itself", str(error))
        self.lost[reason] += 1

    def _say(self, image: Image, flags: int = 0) -> None:
        try:
            self._places.update(_PID.pack(image[0]), _IMAGE.pack(image[1] | flags))
        except MapFullError:
            self._counters[wire.COUNTER_LOST_PROCESSES_FULL] += 1

    def refuse(self, image: Image) -> None:
        """Have probes count all calls of a process."""
        self._refused[image] = None
        self._say(image, _REFUSED)
