"""Completes records of the kernel side: symbol records precede the records that refer to them."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from otel_gpu import wire
from otel_gpu.capture.bpf.programs import Programs
from otel_gpu.capture.maps.blocks import STACK_OF_ONE
from otel_gpu.capture.maps.kernel_stacks import without_kernel_stack
from otel_gpu.capture.maps.map_snapshots import Snapshots
from otel_gpu.capture.processes.watchlist import Watchlist
from otel_gpu.faults import Faults
from otel_gpu.stacks.user_stacks import CALL_TOKEN, NO_TOKEN, SAMPLE_KINDS, UserStacks

_CALL_KIND = wire.RECORD_CUDA_CALL.to_bytes(2, "little")
_STALL_KIND = wire.RECORD_STALL.to_bytes(2, "little")
_BLOCK_KIND = wire.RECORD_BLOCK_STACK.to_bytes(2, "little")
_FAILURE_KIND = wire.RECORD_OUT_OF_MEMORY.to_bytes(2, "little")
_CPU_SAMPLE_KIND = wire.RECORD_CPU_SAMPLE.to_bytes(2, "little")
_STEP_KIND = wire.RECORD_STEP.to_bytes(2, "little")
_ITERATION_KIND = wire.RECORD_ITERATION.to_bytes(2, "little")
_STALL_FIELDS = ("kernel_stack", "resource", "culprit_pid", "ktime_ns", "runnable_ktime_ns")
_KERNEL_STACK, _RESOURCE, _CULPRIT, _END, _RUNNABLE = map(
    wire.STALL_RECORD.fields.index, _STALL_FIELDS
)


class RecordCompletion:
    """
    Resolves the stacks, kernels, resources and other processes that records refer to by number.

    Args:
        programs: The loaded programs.
        user_stacks: Resolves user stacks and kernels.
        snapshots: Resolves kernel stacks, resources and unwatched processes.
        watchlist: Gets the threads that on-CPU samples found.
        faults: Counts errors.
    """

    def __init__(
        self,
        programs: Programs,
        user_stacks: UserStacks,
        snapshots: Snapshots,
        watchlist: Watchlist,
        faults: Faults,
    ) -> None:
        self._programs = programs
        self._user_stacks = user_stacks
        self._snapshots = snapshots
        self._watchlist = watchlist
        self._faults = faults
        self._rarer: Mapping[bytes, Callable[[bytes], Iterable[bytes]]] = {
            _FAILURE_KIND: self._place_failure,
            _ITERATION_KIND: snapshots.steps.take,
            _STEP_KIND: self._pass_step,
        }

    def complete(self, records: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the records of the event ring; if a stack fails, its record comes without it."""
        user_stacks = self._user_stacks
        for record in records:
            try:
                kind = record[:2]
                if kind == _CALL_KIND:
                    yield from user_stacks.kernels.name(record)
                    if record[CALL_TOKEN] == NO_TOKEN:
                        yield record
                        continue
                if kind in SAMPLE_KINDS:
                    user_stacks.take(record)
                    continue
                resolved = self._complete(kind, record)
            except Exception as error:  # noqa: BLE001 -- costs nothing until it happens
                self._faults.add("stacks", error)
                resolved = user_stacks.without_stack(without_kernel_stack(record))
            yield from resolved

    def _complete(self, kind: bytes, record: bytes) -> Iterable[bytes]:
        if kind == _STALL_KIND:
            return (*self._resolve_stall(record), *self._user_stacks.resolve(record))
        if kind == _CPU_SAMPLE_KIND:
            *stacks, sample = self._snapshots.stacks.place(record)
            seen = self._watchlist.after_tick(record)
            return (*seen, *stacks, *self._user_stacks.resolve(sample))
        if kind == _BLOCK_KIND:
            return self._place_blocks(record)
        if kind in self._rarer:
            return tuple(self._rarer[kind](record))
        return self._user_stacks.resolve(record)

    def _place_blocks(self, record: bytes) -> Iterable[bytes]:
        # A key that stands for several stacks gets none.
        fields = wire.BLOCK_STACK_RECORD.named(record)
        stack = fields["stack"]
        if stack & STACK_OF_ONE or self._user_stacks.tells_stacks_apart(record):
            return self._user_stacks.resolve(record)
        self._programs.blocks.break_chain((fields["pid"], fields["program_ktime_ns"]), stack)
        return self._user_stacks.without_stack(record)

    def _place_failure(self, record: bytes) -> Iterator[bytes]:
        yield from self._user_stacks.resolve(record)
        yield from self._snapshots.memory_map(record)

    def _pass_step(self, record: bytes) -> Iterator[bytes]:
        self._snapshots.steps.note_reported(record)
        yield record

    def _resolve_stall(self, record: bytes) -> Iterator[bytes]:
        stall = wire.STALL_RECORD.unpack(record)
        yield from self._snapshots.stacks.describe(stall[_KERNEL_STACK])
        yield from self._snapshots.resources.describe(stall[_RESOURCE])
        self._snapshots.culprits.note(stall[_CULPRIT], stall[_END] - stall[_RUNNABLE])
