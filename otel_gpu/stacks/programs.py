"""
What is known of the process images whose stacks are resolved.

A record may come after its process has ended, or has become another program, so an image is
remembered for a while after its end.
"""

import itertools
import math
import time
from collections import OrderedDict, abc
from collections.abc import Callable, Sequence
from typing import Final

from otel_gpu.limits.caches import CACHES
from otel_gpu.limits.recent import Fifo, Recent
from otel_gpu.procfs.mapped_files import MappedFile
from otel_gpu.stacks.mappings import MAPPING_BYTES, ElfFiles, Mapping, Mappings
from otel_gpu.stacks.read_budget import FileWork
from otel_gpu.stacks.samples import ProcessKey
from otel_gpu.wire.probe_symbols import layer_of_library

# Records wait in the ring for half a second at most, and longer only where much is lost anyway; an end wakes the agent up.
_KEPT_AFTER_END_S: Final = 1.0
# Each one holds a file open.
_MAX_IMAGES: Final = 512
# Of children that were not looked at, and of images that ended: the oldest go.
MAX_REMEMBERED: Final = 4096
# Of the time, 2 % at most go into asking a process again what it maps; at first it loads one
# library after the other, so some of that time is there in advance.
_SHARE: Final = 0.02
_ALLOWANCE_S: Final = 0.05
# What is known is believed for so long: a library may go, and another one come to its place.
_MAX_AGE_S: Final = 5.0
# Not all mappings are reported, so each process is asked now and then, each time after twice as
# long.
_FIRST_DELAY_S: Final = 0.1
_LAST_DELAY_S: Final = 30.0
# A process without mappings.
_NOBODY: Final = 0
_generations = itertools.count(1)


class MappedProgram:
    """
    One program that runs, or ran, in one process: its executable memory, and what files it maps.

    ``generation`` differs from that of any other image, and from its own before it loaded a
    library.
    """

    def __init__(self, mappings: Mappings) -> None:
        self.mappings = mappings
        self.generation = next(_generations)
        self.files: Sequence[MappedFile] = ()
        self._libraries: set[tuple[str, int]] = set()
        self._allowance_s = _ALLOWANCE_S
        self._asked_s = time.monotonic()
        self.ask_from(self._asked_s + _FIRST_DELAY_S)

    def learn(self, files: Sequence[MappedFile]) -> bool:
        """Take what it maps now; return whether that is new."""
        if files == self.files:
            return False
        self.files = files
        self._libraries = {
            (one.name, layer_of_library(one.name)) for one in files if one.is_probed_library
        }
        self.generation = next(_generations)
        self.ask_from(time.monotonic() + _FIRST_DELAY_S)
        return True

    def find(self, address: int) -> Mapping | None:
        """Return the executable mapping that holds an address, or None."""
        mapping = self.mappings.find(address)
        now_s = time.monotonic()
        # A library may be as new as this, and its process gone before long.
        is_old = mapping is None or now_s - self._asked_s >= _MAX_AGE_S
        return self.mappings.find(address) if is_old and self._ask(now_s) else mapping

    def ask_from(self, due_s: float) -> None:
        """Ask what it maps from a moment on, again and again."""
        self._due_s, self._delay_s = due_s, 2 * _FIRST_DELAY_S

    @property
    def due_s(self) -> float:
        """When it is to be asked again."""
        return self._due_s if self._delay_s <= _LAST_DELAY_S else math.inf

    def ask_if_due(self, now_s: float) -> None:
        """Ask the process what it maps, if that is due, since it may end."""
        if self._delay_s <= _LAST_DELAY_S and now_s >= self._due_s and self._ask(now_s):
            self._due_s = now_s + self._delay_s
            self._delay_s *= 2

    def _ask(self, now_s: float) -> bool:
        gained_s = _SHARE * (now_s - self._asked_s)
        self._allowance_s = min(self._allowance_s + gained_s, _ALLOWANCE_S)
        self._asked_s = now_s
        if self._allowance_s <= 0:
            return False
        self.mappings.refresh()
        self._allowance_s -= time.monotonic() - now_s
        return True

    def library(self, layer: int) -> str:
        """Return the name of its library of a layer; empty: it has none, or several."""
        names = [name for name, of in self._libraries if of == layer]
        return names[0] if len(names) == 1 else ""


class MappedPrograms:
    """
    The images of one capture, as (pid, program_ktime_ns).

    One that is not known is met when it is asked for. The one that was not asked for the
    longest time goes when there are too many. ``current`` returns which image a process is now, by
    its ``program_ktime_ns``; 0: not known. ``work`` is what listing their mappings may take.
    """

    def __init__(self, current: Callable[[int], int], work: FileWork | None = None) -> None:
        self._current = current
        self._files = ElfFiles(work=work)
        self._images: OrderedDict[ProcessKey, MappedProgram] = OrderedDict()
        self._parents: Recent[ProcessKey, MappedProgram] = Recent(MAX_REMEMBERED)
        self._ended_s: Fifo[ProcessKey, float] = Fifo(
            MAX_REMEMBERED, evict=lambda image, _: self._drop(image)
        )
        CACHES.register(
            "mappings",
            self,
            "_images",
            release=MappedPrograms._release,
            size_bytes="_size_bytes",
        )

    @property
    def _size_bytes(self) -> int:
        known = (*self._images.values(), *self._parents.values())
        # A child that was not looked at has those of its parent.
        distinct = {id(one): one for one in known}.values()
        return sum(MAPPING_BYTES * one.mappings.count for one in distinct)

    @property
    def mappings_left_out(self) -> int:
        """Executable mappings of processes that have more than are kept; their code has no names."""
        return self._files.mappings_left_out

    def _release(self, count: int) -> None:
        for _ in range(min(count, len(self._images))):
            self._drop(next(iter(self._images)))

    def get(self, image: ProcessKey) -> MappedProgram:
        """Return what is known of an image."""
        known = self._images.get(image)
        if known is None:
            known = self._meet(image)
            while len(self._images) > _MAX_IMAGES:
                self._drop(next(iter(self._images)))
        self._images.move_to_end(image)
        return known

    def learn(self, image: ProcessKey, files: Sequence[MappedFile]) -> None:
        """Take what a process maps now, and open all of it, as it may end at any moment."""
        is_new = image not in self._images
        known = self.get(image)
        if known.learn(files) and not is_new:
            known.mappings.refresh()

    @property
    def due_s(self) -> float:
        """When the next one is to be asked what it maps, by the monotonic clock."""
        living = (one for image, one in self._images.items() if image not in self._ended_s)
        return min((one.due_s for one in living), default=math.inf)

    def ask_due(self) -> None:
        """Ask those what they map that may have loaded more libraries by now."""
        now_s = time.monotonic()
        for image, known in self._images.items():
            if image not in self._ended_s:
                known.ask_if_due(now_s)

    def hurry(self, image: ProcessKey) -> None:
        """An image has just loaded a library that was not looked at."""
        if image in self._images:
            self._images[image].ask_from(time.monotonic())

    def inherit(self, parent: ProcessKey, child: ProcessKey) -> None:
        """
        A process was forked.

        Most children become another program at once, so this one is looked at when its
        first stack comes. If it is gone by then, it had what its parent has.
        """
        known = self._images.get(parent) or self._parents.get(parent)
        if known is not None:
            self._parents[child] = known

    def end(self, image: ProcessKey) -> None:
        """The process has ended, or runs another program now."""
        self._ended_s.setdefault(image, time.monotonic())

    def end_others(self, current: abc.Mapping[int, int]) -> None:
        """End all images but the current ones: ``program_ktime_ns`` of each watched pid."""
        for image in (*self._images, *self._parents):
            if current.get(image[0]) != image[1]:
                self.end(image)

    def drop_ended(self, now_s: float | None = None) -> list[ProcessKey]:
        """Forget images that ended a while ago, and return them."""
        now_s = time.monotonic() if now_s is None else now_s
        due = itertools.takewhile(
            lambda image: now_s - self._ended_s[image] >= _KEPT_AFTER_END_S, self._ended_s
        )
        dropped = list(due)
        for image in dropped:
            self._drop(image)
        return dropped

    def close(self) -> None:
        """Close all files."""
        while self._images:
            self._drop(next(iter(self._images)))
        self._files.close()

    def _meet(self, image: ProcessKey) -> MappedProgram:
        pid, program_ktime_ns = image
        parent = self._parents.pop(image, None)
        mappings = self._open(pid, parent)
        # Asked afterwards: what was opened before is of that image, or of one before it.
        if image in self._ended_s or self._current(pid) != program_ktime_ns:
            mappings.close()
            mappings = self._open(_NOBODY, parent)
        known = self._images[image] = MappedProgram(mappings)
        if parent is not None:
            known.learn(parent.files)
        return known

    def _open(self, pid: int, parent: MappedProgram | None) -> Mappings:
        return parent.mappings.inherit(pid) if parent else Mappings(pid, self._files)

    def _drop(self, image: ProcessKey) -> None:
        self._parents.pop(image, None)
        self._ended_s.pop(image, None)
        known = self._images.pop(image, None)
        if known is not None:
            known.mappings.close()
