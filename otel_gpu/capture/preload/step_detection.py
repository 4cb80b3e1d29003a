"""
Steps that preloaded programs detect in threads whose calls have no probes.

The shared memory is untrusted input. It can only change what is reported about its own process.
"""

import os
from collections.abc import Iterator, Sequence
from itertools import count
from operator import le, sub
from typing import Any, Final

from otel_gpu import wire
from otel_gpu.capture.steps.period import CallSequence
from otel_gpu.capture.steps.period_maps import IterationTimes, PeriodMemory
from otel_gpu.limits.work_budget import WorkBudget
from otel_gpu.procfs import kernel_clock
from otel_gpu.procfs.mapped_files import thread_ids
from otel_gpu.procfs.process_facts import read_ids
from otel_gpu.stacks.samples import ProcessKey

_NO_CALLS: Final = CallSequence(symbols=(), starts_ns=(), gaps_ns=(), roles={})
_ITERATIONS_MADE = wire.PRELOAD_DETECTOR.offset_of("iterations_made")
_ITERATIONS = wire.PRELOAD_DETECTOR.offset_of("iterations")
_CALLS = wire.PRELOAD_DETECTOR.offset_of("calls")
_COUNT_BYTES = 8


class _Memory:
    # The step detectors of one program; without a descriptor (-1) they read as zeros.

    def __init__(self, fd: int, program: ProcessKey, uid: int, first: int) -> None:
        self.fd = fd
        self.program = program
        self.uid = uid
        self.is_left = False
        self.indices = range(first, first + wire.PRELOAD_DETECTORS)
        # Iterations that were read, by index; our tids, by those of the program's namespace.
        self.iterations_read: dict[int, int] = {}
        self.tids: dict[int, int] = {}
        # The indices that threads used at the latest reading.
        self.taken: list[int] = []

    def tid(self, own_tid: int) -> int:
        # In our pid namespace; 0 if the thread has ended.
        if self.fd < 0:
            return 0
        if own_tid not in self.tids:
            if len(self.tids) >= wire.PRELOAD_SLOTS:
                self.tids.clear()
            self.tids[own_tid] = _find_tid(self.program[0], own_tid, self._own_pid())
        return self.tids[own_tid]

    def read(self, offset: int, size_bytes: int) -> bytes:
        return bytes(size_bytes) if self.fd < 0 else os.pread(self.fd, size_bytes, offset)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def _own_pid(self) -> int:
        data = self.read(0, wire.PRELOAD_HEADER.size)
        return (
            int(wire.PRELOAD_HEADER.named(data)["pid"])
            if len(data) == wire.PRELOAD_HEADER.size
            else 0
        )


class PreloadDetectors(PeriodMemory):
    """
    Step detection of all preloaded programs; indices are above those of the kernel side.

    Each thread has its own area. ``lost``: counters by ``enum counter``; iterations that were overwritten or
    are impossible are added to the rate-limited ones. ``budget``: the time for reading.
    """

    def __init__(self, lost: list[int], budget: WorkBudget) -> None:
        self._lost = lost
        self._budget = budget
        self._memories: dict[ProcessKey, _Memory] = {}
        self._by_index: dict[int, _Memory] = {}
        self._first = count(wire.MAX_STEP_DETECTORS, wire.PRELOAD_DETECTORS)

    def add(self, program: ProcessKey, fd: int, uid: int) -> None:
        """
        Add a program; the caller keeps its descriptor.

        Raises:
            OSError: The memory cannot be read or written.
        """
        if program in self._memories:
            self._drop(program)
        memory = _Memory(fd=os.dup(fd), program=program, uid=uid, first=next(self._first))
        self._memories[program] = memory
        self._by_index |= dict.fromkeys(memory.indices, memory)
        # Reset what an earlier agent left in use.
        for index in memory.indices:
            if self._get(index, "tid"):
                self.stop(index)
                self._give(index, 1)
                memory.iterations_read[index] = self._iterations_made(index)

    def leave(self, program: ProcessKey, *, is_readable: bool = True) -> None:
        """Release a program once its threads have ended; if it is not readable, close it at once."""
        if program in self._memories:
            self._memories[program].is_left = True
            if not is_readable:
                self._memories[program].close()

    def close(self) -> None:
        """Close the memory of all programs."""
        for program in list(self._memories):
            self._drop(program)

    def taken(self) -> Iterator[tuple[int, dict[str, object]]]:
        """Yield the detectors that threads use, as (index, ``struct step_detector``)."""
        for program, memory in list(self._memories.items()):
            if not (memory.is_left or self._budget.allows(program, memory.uid)):
                continue
            with self._budget.paying(program, memory.uid):
                detectors = list(self._detectors_of(memory))
            yield from detectors
            if memory.is_left and not detectors:
                self._drop(program)

    def _detectors_of(self, memory: _Memory) -> Iterator[tuple[int, dict[str, object]]]:
        if memory.fd < 0:
            # Unreadable: treat its threads as ended.
            yield from ((at, self.detector(at) | {"has_ended": 1}) for at in memory.taken)
            return
        indices = memory.indices
        memory.taken = [at for at in indices if self._get(at, "tid") and self._get(at, "pid")]
        yield from ((at, self.detector(at)) for at in memory.taken)

    def holds(self, index: int) -> bool:
        """Whether the memory of an index is open; closed ones are not assigned again."""
        return index in self._by_index

    def free(self, index: int) -> None:
        """Release the detector of a thread that has ended."""
        super().free(index)
        memory = self._by_index[index]
        memory.taken = [at for at in memory.taken if at != index]

    def detector(self, index: int) -> dict[str, Any]:
        """Return ``struct step_detector`` as it is now, with pid and tid of the agent's namespace."""
        memory = self._by_index[index]
        fields = super().detector(index)
        pid, program_ktime_ns = memory.program
        last_ktime_ns = min(fields["last_return_ktime_ns"], kernel_clock.ktime_ns())
        return fields | {
            "pid": pid,
            "tid": memory.tid(fields["tid"]),
            "program_ktime_ns": program_ktime_ns,
            "kept": min(fields["kept"], wire.DETECTOR_CALLS),
            "last_return_ktime_ns": last_ktime_ns,
        }

    def calls(self, index: int) -> CallSequence:
        """Return the recent calls; none if their times are impossible."""
        calls = super().calls(index)
        starts_ns = [self._by_index[index].program[1], *calls.starts_ns]
        returns_ns = [*map(sub, calls.starts_ns, calls.gaps_ns), kernel_clock.ktime_ns()]
        return calls if all(map(le, starts_ns, returns_ns)) else _NO_CALLS

    def iterations(self, index: int, *, is_last: bool = False) -> Sequence[IterationTimes]:
        """Return the iterations since the previous call; ``is_last`` adds the thread's final one."""
        memory = self._by_index[index]
        if not (is_last or self._budget.allows(memory.program, memory.uid)):
            return ()
        with self._budget.paying(memory.program, memory.uid):
            return self._iterations(index, memory, is_last=is_last)

    def _iterations(
        self, index: int, memory: _Memory, *, is_last: bool
    ) -> Sequence[IterationTimes]:
        made, read = self._iterations_made(index), memory.iterations_read.get(index, 0)
        memory.iterations_read[index] = made
        size = wire.PRELOAD_ITERATION.size
        found = []
        for number in range(max(read, made - wire.PRELOAD_ITERATIONS), made):
            data = self._read(index, _ITERATIONS + number % wire.PRELOAD_ITERATIONS * size, size)
            found.append(IterationTimes(*wire.PRELOAD_ITERATION.unpack(data)))
        limited = max(0, made - read - len(found))
        if is_last:
            found += self._last_iteration(index)
        begun_ktime_ns, now_ktime_ns = memory.program[1], kernel_clock.ktime_ns()
        sound = [
            one
            for one in found
            if begun_ktime_ns <= one.start_ktime_ns < one.end_ktime_ns <= now_ktime_ns
        ]
        limited += len(found) - len(sound)
        self._lost[wire.COUNTER_STEPS_RATE_LIMITED] += min(limited, wire.PRELOAD_ITERATIONS)
        return sound

    def _last_iteration(self, index: int) -> Iterator[IterationTimes]:
        detector = self.detector(index)
        if detector["is_over"] and detector["start_mask"]:
            start_ktime_ns, end_ktime_ns = (
                detector["start_ktime_ns"],
                detector["last_return_ktime_ns"],
            )
            yield IterationTimes(start_ktime_ns, end_ktime_ns)

    def share_areas(self, wanting: Sequence[int]) -> None:
        """Assign areas to threads that wait for one."""
        for index in wanting:
            if not self._get(index, "area"):
                self._give(index, 1)

    def _iterations_made(self, index: int) -> int:
        return int.from_bytes(self._read(index, _ITERATIONS_MADE, _COUNT_BYTES), "little")

    def _drop(self, program: ProcessKey) -> None:
        memory = self._memories.pop(program)
        for index in memory.indices:
            del self._by_index[index]
        memory.close()

    def _read(self, index: int, offset: int, size_bytes: int) -> bytes:
        memory = self._by_index[index]
        return memory.read(_place(memory, index) + offset, size_bytes)

    def _write(self, index: int, offset: int, data: bytes) -> None:
        memory = self._by_index[index]
        if memory.fd >= 0:
            os.pwrite(memory.fd, data, _place(memory, index) + offset)

    def _kept(self, index: int) -> bytes:
        kept = min(self._get(index, "kept"), wire.DETECTOR_CALLS)
        return self._read(index, _CALLS, kept * wire.DETECTOR_CALL.size)


def _place(memory: _Memory, index: int) -> int:
    return (
        wire.PRELOAD_DETECTORS_OFFSET + (index - memory.indices.start) * wire.PRELOAD_DETECTOR_BYTES
    )


def _find_tid(pid: int, own_tid: int, own_pid: int) -> int:
    for tid in (own_tid, *thread_ids(pid)):
        if read_ids(f"/proc/{pid}/task/{tid}")[0] == own_tid:
            return tid
    # The thread has ended, and maybe the process. If the process has the same pid in both namespaces, so
    # do its threads.
    return own_tid if own_pid == pid else 0
