"""
The doors of watched processes: opened, read, and closed when their process ended.

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
from otel_gpu.capture.preload.program import Door
from otel_gpu.capture.preload.settings import Wishes
from otel_gpu.capture.preload.shared_memory import DoorError, count_rows, open_memory
from otel_gpu.capture.preload.step_detection import DoorRhythms
from otel_gpu.capture.probes.elf_exports import ElfSymbols
from otel_gpu.capture.processes.unread import Unread
from otel_gpu.config import Config
from otel_gpu.errors import MapFullError
from otel_gpu.limits.recent import Recent
from otel_gpu.limits.work_budget import Share, WorkBudget
from otel_gpu.procfs.mapped_files import FileId, MappedFile, door_memory
from otel_gpu.procfs.proc_files import stream_of
from otel_gpu.procfs.reader import read_process_file
from otel_gpu.procfs.users import user_of
from otel_gpu.stacks.read_budget import FileWork
from otel_gpu.stacks.samples import Image
from otel_gpu.wire.agent_records import Entry
from otel_gpu.wire.probe_symbols import layer_of_library

DOOR_THREAD: Final = "otel_gpu_door_thread"
"""The function of the library that each thread calls first."""

_MAX_REFUSED: Final = 4096
_MAX_LIBRARIES: Final = 64
_MAX_ENVIRONMENT_BYTES: Final = 1 << 20
_IS_OFF: Final = b"\0OTEL_GPU_DOOR=0\0"
_PID: Final = struct.Struct("<I")
_IMAGE: Final = struct.Struct("<Q")
_KEY_IMAGE: Final = struct.Struct("<QI")
_REFUSED: Final = 1 << wire.DOOR_REFUSED_BIT
# Seconds. A memory of ten threads takes 0.2 ms, and the largest that there can be 0.2 s. Who is at the
# end of a share waits for the next reading, and loses nothing.
_READING: Final = Share(0.25, 0.02), Share(0.5, 0.04), Share(1.0, 0.1)
# The last reading of a process cannot wait. Small ones need no share.
_LAST_READING: Final = Share(0.5, 0.02), Share(1.0, 0.05), Share(2.0, 0.1)
_SMALL_ROWS: Final = 1024
# Losses of the door that the kernel side has too, and those that only doors have.
_LOST: Final = {
    wire.DOOR_LOST_SERIES_FULL: wire.COUNTER_LOST_SERIES_FULL,
    wire.DOOR_LOST_NO_RETURN: wire.COUNTER_LOST_NO_RETURN,
    wire.DOOR_LOST_RHYTHMS_FULL: wire.COUNTER_RHYTHMS_WITHHELD,
}
_OWN_LOST: Final = {
    wire.DOOR_LOST_DEPTH_EXCEEDED: "door_depth_exceeded",
    wire.DOOR_LOST_SLOTS_FULL: "door_slots_full",
    wire.DOOR_LOST_COPIES_FULL: "door_copies_full",
}

LOST_BY_DOORS: Final = ("door_unread", "door_rejected", *_OWN_LOST.values())
"""The reasons of losses that only doors have."""


class _NoShareError(DoorError):
    def __init__(self, rows: int) -> None:
        super().__init__(f"its user's share of reading is used up, and it has {rows:,} series")


class Doors:
    """
    The doors of one capture.

    Args:
        bpf: The object with the map of processes that have one.
        config: The histogram layout, which is that of the doors unless it was changed.
        lost: By ``enum counter``; what a door could not count is added.

    Attributes:
        suits: Whether doors count in the histograms of this capture; if not, there are none to it.
        lost: What only doors lose, by reason.
        rhythms: What doors keep of threads whose steps are looked for.
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
        self._places = bpf.map("doors")
        self._counters = lost
        self._doors: dict[Image, Door] = {}
        self._refused: Recent[Image, None] = Recent(_MAX_REFUSED)
        self._libraries: Recent[FileId, bool] = Recent(_MAX_LIBRARIES)
        self._wishes = Wishes(config)
        self._reading = WorkBudget(*_READING, clock=clock)
        self._last_reading = WorkBudget(*_LAST_READING, clock=clock)
        self._refused_now: set[Image] = set()
        self.unread = unread or Unread()
        self._files = files or FileWork()
        self.is_ending = False
        self.rhythms = DoorRhythms(lost, self._reading)
        # Of these processes every call is shown that says that work on a stream is done.
        self._with_collectives: Recent[Image, None] = Recent(_MAX_REFUSED)
        self.suits = config.histograms.layout == "exponential"
        self.lost: Counter[str] = Counter()
        self.calls = 0

    def has_door(self, image: Image, mapped: Collection[MappedFile]) -> bool:
        """Say whether a process counts hot calls itself, or will do so from the first on."""
        if not self.suits or image in self._refused:
            return False
        if not any(self._is_library(file) for file in mapped if file.is_door):
            return False
        if any(layer_of_library(file.name) == wire.LAYER_NCCL for file in mapped):
            self._show_collectives(image)
        environment = b"\0" + read_process_file(image[0], "environ", _MAX_ENVIRONMENT_BYTES) + b"\0"
        return _IS_OFF not in environment

    def _show_collectives(self, image: Image) -> None:
        door = self._doors.get(image)
        if door is not None and image not in self._with_collectives:
            door.is_asked = False  # for less than this
        self._with_collectives[image] = None

    def examine(self, image: Image) -> bool:
        """
        Open the memory of a process that has begun to count before we could see it begin.

        Nothing is shown before ``ask``. Returns whether all its hot calls come through the door, as
        far as is known; False: probes have to count the others.
        """
        if image in self._refused:
            return False
        address = None if image in self._doors else door_memory(image[0])
        if address is not None:
            # From here on no probe counts what the door counts.
            self._say(image)
            if not self._open(image, address):
                return False
        door = self._doors.get(image)
        try:
            return door is None or door.sees_all()
        except (OSError, DoorError):
            return True

    def open(self, image: Image, address: int) -> bool:
        """
        Open the memory at an address, and ask: a probe has told of it.

        False: probes have to count the calls of this process.
        """
        if image not in self._doors and not self._open(image, address):
            return False
        self.ask(image)
        return not self._doors[image].is_closed

    def ask(self, image: Image) -> None:
        """
        Say what is to be shown, unless that was said, now that there are probes that see it.

        Each thread says at its next call that it counts its calls.
        """
        door = self._doors.get(image)
        if door is not None and not door.is_asked:
            with contextlib.suppress(OSError):
                self._wish(door, image)

    def _open(self, image: Image, address: int) -> bool:
        if image in self._refused:
            return False
        if not self.suits or not address:
            self._refuse(image)
            return False
        fd, uid = -1, user_of(image[0]).uid
        try:
            fd = open_memory(image[0], address)
            self._check_share(self._reading, image, uid, fd)
            with self._reading.paying(image, uid):
                door = Door(fd, address, image, uid)
                self.rhythms.add(image, fd, uid)
            self._doors[image] = door
        except (OSError, DoorError) as error:
            if fd >= 0:
                os.close(fd)
            self._lose(image, uid, error, "door_unread")
            self._refuse(image)
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
            door = self._doors.get(image)
            if door is None:
                continue
            if not door.is_closed:
                self._read(image, door, is_last=is_last)
            found |= door.series
        return found

    def _in_turn(self) -> list[Image]:
        """Return all images: first those of users, and of processes, who took least of our time."""
        doors = self._doors
        return sorted(
            doors, key=lambda image: self._reading.left(image, doors[image].uid), reverse=True
        )

    def _read(self, image: Image, door: Door, *, is_last: bool) -> None:
        budget = self._last_reading if is_last else self._reading
        calls = door.calls
        try:
            if is_last:
                self._check_share(budget, image, door.uid, door.fd)
            elif not budget.allows(image, door.uid):
                return
            with budget.paying(image, door.uid):
                self._note_lost(*door.read())
        except _NoShareError as error:
            self._lose(image, door.uid, error, "door_unread")
            self._leave(image, door)
        except (OSError, DoorError) as error:
            self._lose(image, door.uid, error, "door_rejected")
            self._leave(image, door)
        self.calls += door.calls - calls

    def _check_share(self, budget: WorkBudget, image: Image, uid: int, fd: int) -> None:
        if not budget.allows(image, uid):
            rows = count_rows(lambda offset, size_bytes: os.pread(fd, size_bytes, offset))
            if rows > _SMALL_ROWS:
                raise _NoShareError(rows)

    def _leave(self, image: Image, door: Door) -> None:
        """Read nothing any more of a memory; what it has counted until now stays."""
        with contextlib.suppress(OSError):
            self._wishes.withdraw(door.fd)
        self.rhythms.leave(image, is_readable=False)
        door.close()
        self._refuse(image)
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
        Yield the time account, booked between these moments, with what doors know of it.

        That is of all images, or of these, which have ended.
        """
        known = self._doors.keys() if images is None else self._doors.keys() & set(images)
        of_doors: dict[Image, list[Entry]] = {image: [] for image in known}
        for entry in entries:
            image_ktime_ns, pid = _KEY_IMAGE.unpack_from(entry[0])
            if (found := of_doors.get((pid, image_ktime_ns))) is not None:
                found.append(entry)
            else:
                yield entry
        for image, found in of_doors.items():
            yield from self._divide(image, self._doors[image], found, booked_ktime_ns)

    def _divide(
        self, image: Image, door: Door, entries: list[Entry], booked_ktime_ns: tuple[int, int]
    ) -> list[Entry]:
        is_new = self._reading.allows(image, door.uid)
        try:
            with self._reading.paying(image, door.uid):
                return door.divide_times(entries, booked_ktime_ns, is_new=is_new)
        except (OSError, DoorError):
            return entries  # The next reading of its series says so.

    def still_open(
        self, image: Image, slot: int, calls: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """
        Return which of a thread's open calls, as ``open_call`` has them, are open now.

        The kernel side learns of the end of a call that the door publishes when the thread leaves
        the CPU.
        """
        door = self._doors.get(image)
        published = door.open_calls(slot) if door else []
        ended = {call["start_ktime_ns"] for call in calls if call["is_published"]}
        ended.difference_update(published)
        return [call for call in calls if call["start_ktime_ns"] not in ended]

    def set_thresholds(self, thresholds: Mapping[tuple[int, int, int, int], int]) -> None:
        """Have calls and gaps be shown that take so long in ns, by the fields of ``threshold_key``."""
        of_images: dict[Image, dict[tuple[int, int], int]] = {image: {} for image in self._doors}
        for (ktime_ns, pid, api, copy_kind), threshold_ns in thresholds.items():
            if (of_image := of_images.get((pid, ktime_ns))) is not None:
                of_image[api, copy_kind] = threshold_ns
        for image, door in self._doors.items():
            with contextlib.suppress(OSError):
                self._wish(door, image, of_images[image])

    def images(self) -> set[Image]:
        """Return the images that have a door, also one that is not read any more."""
        return set(self._doors)

    def close(self, images: Iterable[Image] | None = None) -> None:
        """Close the doors of images that ended, or all."""
        for image in list(self._doors) if images is None else images:
            if (door := self._doors.pop(image, None)) is not None:
                if images is None:
                    with contextlib.suppress(OSError):
                        self._wishes.withdraw(door.fd)
                else:
                    self._counters[wire.COUNTER_LOST_EXIT_INSIDE_CALL] += door.calls_inside()
                    self.rhythms.leave(image)
                door.close()
        if images is None:
            self.rhythms.close()

    def _wish(
        self, door: Door, image: Image, thresholds: Mapping[tuple[int, int], int] | None = None
    ) -> None:
        collectives = image in self._with_collectives
        self._wishes.write(door.fd, thresholds or {}, collectives=collectives)
        door.is_asked = True

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
            self._libraries[mapped.file] = DOOR_THREAD in names
        return self._libraries[mapped.file]

    def _note_lost(self, lost: list[int], rejected: int) -> None:
        for loss, times in enumerate(lost):
            if loss == wire.DOOR_LOST_BOUND_PAST:
                continue  # Probes count what goes past.
            if times and loss in _LOST:
                self._counters[_LOST[loss]] += times
            elif times:
                self.lost[_OWN_LOST.get(loss, "door_other")] += times
        if rejected:
            self.lost["door_rejected"] += rejected

    def _lose(self, image: Image, uid: int, error: Exception, reason: str) -> None:
        self.unread.add(image[0], uid, "what it counts itself", str(error))
        self.lost[reason] += 1

    def _say(self, image: Image, flags: int = 0) -> None:
        try:
            self._places.update(_PID.pack(image[0]), _IMAGE.pack(image[1] | flags))
        except MapFullError:
            self._counters[wire.COUNTER_LOST_PROCESSES_FULL] += 1

    def _refuse(self, image: Image) -> None:
        self._refused[image] = None
        self._say(image, _REFUSED)
