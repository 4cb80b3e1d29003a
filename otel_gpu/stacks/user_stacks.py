"""
User stacks of calls and stalls: turns samples into records of stacks.

A sample comes before the record that refers to it: right before a call, possibly long before the end of
a wait. Most waits are never referred to, so samples are kept as they are, and only a referenced one
becomes a stack.

Python frames are used once the layout of the interpreter is verified. Ticks are held for a while until
then.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from otel_gpu import wire
from otel_gpu.limits.caches import CACHES
from otel_gpu.limits.recent import Recent
from otel_gpu.stacks.python.code_objects import CodeObjects
from otel_gpu.stacks.read_budget import FileWork
from otel_gpu.stacks.resolved_programs import MappedPrograms
from otel_gpu.stacks.resolver import NO_API, NOTHING, OpenFrames, Resolved, Resolver
from otel_gpu.stacks.samples import SMALLEST_SAMPLE_BYTES, ProcessKey, Sample
from otel_gpu.stacks.stack_counts import StackCount
from otel_gpu.stacks.symbols.kernel_names import LaunchedKernels
from otel_gpu.stacks.symbols.native_names import Symbols
from otel_gpu.stacks.unwind.unwinder import Unwinder

SAMPLE_KINDS: Final = tuple(
    kind.to_bytes(2, "little") for kind in (wire.RECORD_SAMPLE, wire.RECORD_CODE)
)
"""The first bytes of a record of a sample or of a part of one."""
_CODE_KIND: Final = wire.RECORD_CODE.to_bytes(2, "little")
_MAX_SAMPLE_BYTES: Final = 4 << 20
# A call that waits for longer has no stack of its wait until it is resolved as an open call.
_MAX_SAMPLE_AGE_NS: Final = 60_000_000_000
_MAX_NAMED: Final = 4096
_MAX_HELD: Final = 256
# Overhead of a sample: its key, the entry, and the header of its bytes.
_SAMPLE_OVERHEAD_BYTES: Final = 250
_MAX_DOUBT_NS: Final = 3_000_000_000
_TOKEN_BYTES: Final = 8
_API_BYTES: Final = 2
_NAMED_BY_PYTHON: Final = (wire.PYTHON_COMPLETE, wire.PYTHON_CUT)
NO_TOKEN: Final = bytes(_TOKEN_BYTES)
_STALL_KIND: Final = wire.RECORD_STALL.to_bytes(2, "little")
_TICK_KIND: Final = wire.RECORD_CPU_SAMPLE.to_bytes(2, "little")
_CALL_STACK: Final = wire.CUDA_CALL_RECORD.offset_of("user_stack")
_CALL_API: Final = wire.CUDA_CALL_RECORD.offset_of("api")
_STALL_STACK: Final = wire.STALL_RECORD.offset_of("user_stack")
_BLOCK_KIND: Final = wire.RECORD_BLOCK_STACK.to_bytes(2, "little")
_BLOCK_STACK: Final = wire.BLOCK_STACK_RECORD.offset_of("user_stack")
_FAILURE_KIND: Final = wire.RECORD_OUT_OF_MEMORY.to_bytes(2, "little")
CALL_TOKEN: Final = slice(_CALL_STACK, _CALL_STACK + _TOKEN_BYTES)
"""The token of the stack in a CUDA_CALL record; ``NO_TOKEN`` without a stack."""
_POSITIONS: Final = {
    wire.RECORD_CUDA_CALL.to_bytes(2, "little"): _CALL_STACK,
    _STALL_KIND: _STALL_STACK,
    _TICK_KIND: wire.CPU_SAMPLE_RECORD.offset_of("user_stack"),
    _BLOCK_KIND: _BLOCK_STACK,
    _FAILURE_KIND: wire.OUT_OF_MEMORY_RECORD.offset_of("user_stack"),
}
# The API in records whose samples are taken at the return of a call, or in an open call.
_APIS: Final = {
    wire.RECORD_CUDA_CALL.to_bytes(2, "little"): _CALL_API,
    _FAILURE_KIND: wire.OUT_OF_MEMORY_RECORD.offset_of("api"),
    _BLOCK_KIND: None,
}
_NOT_AN_API: Final = 0
_COUNTS: Final = (
    *(StackCount.RESOLVED, StackCount.MEMO_HITS, StackCount.INCOMPLETE, StackCount.WITHOUT_SAMPLE),
    *(StackCount.UNUSED, StackCount.REJECTED, StackCount.DISTINCT),
)


class UserStacks:
    """
    The user stacks of one capture; the watcher of processes keeps ``processes`` up to date.

    ``current`` returns the ``program_ktime_ns`` of a process's present program; 0: unknown.
    ``trusts`` returns whether the Python frames of a program are valid; None: unknown so far.
    ``lose_python`` is called for each sample that runs Python without any Python line, if
    ``cannot_know`` returns that the interpreter of its program is unsupported. A sample from before the
    interpreter was found, or of a program that ended before, is only incomplete. ``work`` is the budget
    for reading files of processes.
    """

    def __init__(
        self,
        current: Callable[[int], int],
        unwinder: Unwinder | None = None,
        symbols: Symbols | None = None,
        trusts: Callable[[ProcessKey], bool | None] = lambda _: True,
        lose_python: Callable[[], None] = lambda: None,
        cannot_know: Callable[[ProcessKey], bool] = lambda _: False,
        work: FileWork | None = None,
    ) -> None:
        self.processes = MappedPrograms(current, work)
        self._codes = CodeObjects()
        self._symbols = symbols or Symbols(work=work)
        self._resolver = Resolver(
            self.processes,
            self._codes,
            unwinder=unwinder or Unwinder(work=work),
            symbols=self._symbols,
        )
        self.kernels = LaunchedKernels(self.processes, self._symbols)
        # By thread and token; for a wait that was referenced already, its stack.
        self._trusts = trusts
        self._lose_python = lose_python
        self._cannot_know = cannot_know
        # Ticks, and their samples, of interpreters that are not verified yet.
        self._held: deque[tuple[bytes, bytes]] = deque()
        self._samples: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._sample_bytes = 0
        self._newest_token = 0
        self._named: Recent[tuple[int, int], Resolved] = Recent(_MAX_NAMED, cache="named_waits")
        self._counts: dict[StackCount, int] = dict.fromkeys(_COUNTS, 0)
        CACHES.register(
            "stack_samples",
            self,
            "_samples",
            release=UserStacks._release_samples,
            size_bytes="_sample_bytes",
            entry_bytes=_SAMPLE_OVERHEAD_BYTES,
        )

    @property
    def counts(self) -> Mapping[StackCount, int]:
        """Counts of samples, stacks and losses."""
        return self._counts | {
            StackCount.CODE_REJECTED: self._codes.rejected,
            StackCount.CODE_FORGOTTEN: self._codes.forgotten,
            StackCount.PERF_MAP_MALFORMED: self._symbols.malformed,
            StackCount.MAPPING_LEFT_OUT: self.processes.mappings_left_out,
        }

    def end_others(self, current: Mapping[int, int]) -> None:
        """End all programs but the current ones: ``program_ktime_ns`` of each watched pid."""
        self.processes.end_others(current)
        for program in self._codes.programs:
            if current.get(program[0]) != program[1]:
                self.processes.end(program)

    def drop_ended(self, now_s: float | None = None) -> None:
        """Evict processes and waits that ended a while ago."""
        dropped = set(self.processes.drop_ended(now_s))
        for program in dropped:
            self._codes.forget(program)
            self.kernels.forget(program)
        if dropped:
            self._resolver.forget(dropped)
            for key, sample in list(self._samples.items()):
                header = wire.RECORD_HEADER.named(sample)
                if (header["pid"], header["program_ktime_ns"]) in dropped:
                    self._drop_sample(key)
        oldest = self._newest_token - _MAX_SAMPLE_AGE_NS
        while self._named and self._named.oldest[1] <= oldest:
            del self._named[self._named.oldest]

    def close(self) -> None:
        """Close all files."""
        self.processes.close()
        self._symbols.close()

    def take(self, record: bytes) -> None:
        """Keep a SAMPLE or a CODE record, in the order of the ring."""
        if record.startswith(_CODE_KIND):
            self._codes.learn(record)
            return
        if len(record) < SMALLEST_SAMPLE_BYTES:
            self._counts[StackCount.REJECTED] += 1
            return
        _, _, _, token, _, _, tid = wire.RECORD_HEADER.unpack_from(record)
        replaced = self._samples.pop((tid, token), b"")
        self._samples[tid, token] = record
        self._sample_bytes += len(record) - len(replaced)
        self._newest_token = max(self._newest_token, token)
        while self._samples:
            oldest = next(iter(self._samples))
            is_young = token - oldest[1] < _MAX_SAMPLE_AGE_NS
            if is_young and self._sample_bytes <= _MAX_SAMPLE_BYTES:
                break
            self._drop_sample(oldest)

    def _release_samples(self, count: int) -> None:
        for _ in range(min(count, len(self._samples))):
            self._drop_sample(next(iter(self._samples)))

    def _drop_sample(self, key: tuple[int, int]) -> None:
        self._sample_bytes -= len(self._samples.pop(key))
        self._counts[StackCount.UNUSED] += 1

    def resolve(self, record: bytes) -> Sequence[bytes]:
        """
        Return a record with the id of its stack in place of the token.

        The record of a new stack comes before it. Without a sample, the id is 0. Records of other kinds
        are returned unchanged.
        """
        position = _POSITIONS.get(record[:2], len(record))
        token = int.from_bytes(record[position : position + _TOKEN_BYTES], "little")
        if not token:
            return (record,)
        _, _, _, ktime_ns, _, _, tid = wire.RECORD_HEADER.unpack_from(record)
        key = (tid, token)
        found = self._named.get(key, NOTHING)
        sample = self._samples.pop(key, None)
        if sample is not None:
            self._sample_bytes -= len(sample)
            is_tick = record.startswith(_TICK_KIND)
            if is_tick and self._is_in_doubt(sample):
                self._held.append((record, sample))
                return self._release_oldest() if len(self._held) > _MAX_HELD else ()
            found = self._resolve_sample(sample, _api_of(record), ktime_ns, is_tick=is_tick)
            if record.startswith(_STALL_KIND):
                # The same wait can be a stall, and a part of a call or gap.
                self._named[key] = found._replace(records=())
        if found.stack:
            self._counts[StackCount.RESOLVED] += 1
            self._counts[StackCount.INCOMPLETE] += not found.complete
        elif sample is None:
            self._counts[StackCount.WITHOUT_SAMPLE] += 1
        return (*found.records, _with_stack(record, position, found.stack))

    @property
    def holds_samples(self) -> bool:
        """Whether samples are held until their interpreter is verified."""
        return bool(self._held)

    def release(self, *, is_last: bool = False) -> Iterator[bytes]:
        """Yield the records of held ticks that are decided now; ``is_last``: of all of them."""
        for _ in range(len(self._held)):
            _, sample = self._held[0]
            age_ns = self._newest_token - wire.RECORD_HEADER.unpack_from(sample)[3]
            if is_last or age_ns >= _MAX_DOUBT_NS or not self._is_in_doubt(sample):
                yield from self._release_oldest()
            else:
                self._held.rotate(-1)

    def _release_oldest(self) -> Sequence[bytes]:
        tick, sample = self._held.popleft()
        ktime_ns = wire.RECORD_HEADER.unpack_from(tick)[3]
        position = _POSITIONS[_TICK_KIND]
        found = self._resolve_sample(sample, NO_API, ktime_ns, is_tick=True)
        self._counts[StackCount.RESOLVED] += bool(found.stack)
        self._counts[StackCount.INCOMPLETE] += bool(found.stack) and not found.complete
        return (*found.records, _with_stack(tick, position, found.stack))

    def _is_in_doubt(self, sample: bytes) -> bool:
        *_, program_ktime_ns, pid, _ = wire.RECORD_HEADER.unpack_from(sample)
        return self._trusts((pid, program_ktime_ns)) is None

    def without_stack(self, record: bytes) -> Sequence[bytes]:
        """Return a record without its stack, and nothing for a sample."""
        if record[:2] in SAMPLE_KINDS:
            return ()
        position = _POSITIONS.get(record[:2])
        return (record,) if position is None else (_with_stack(record, position, 0),)

    def resolve_open(
        self, sample: bytes, program: ProcessKey, tid: int, start_ktime_ns: int
    ) -> tuple[int, Sequence[bytes]]:
        """
        Return the stack of an open call, and the records to send before it.

        ``sample`` is the kernel side's sample of the thread's latest wait, or empty. One that is older
        than the call, or of another thread, gives 0 and no records.
        """
        if len(sample) < SMALLEST_SAMPLE_BYTES:
            return 0, ()
        _, _, _, ktime_ns, *owner = wire.RECORD_HEADER.unpack_from(sample)
        if ktime_ns < start_ktime_ns or owner != [program[1], program[0], tid]:
            return 0, ()
        found = self._resolve_sample(sample, NO_API, ktime_ns)
        return found.stack, found.records

    def tells_stacks_apart(self, record: bytes) -> bool:
        """
        Whether the key of a BLOCK_STACK record identifies its stack, by its sample.

        The key is a hash of Python frames, or else of a chain of frame pointers.
        """
        _, _, _, _, _, _, tid = wire.RECORD_HEADER.unpack_from(record)
        token = int.from_bytes(record[_BLOCK_STACK : _BLOCK_STACK + _TOKEN_BYTES], "little")
        try:
            sample = Sample(self._samples.get((tid, token), b""))
        except ValueError:
            return True  # and so it has no stack
        return sample.python_status in _NAMED_BY_PYTHON or self._resolver.has_whole_chain(sample)

    def open_calls(self, sample: bytes) -> OpenFrames:
        """Return the open CUDA calls of a thread, by the sample of a thread dump; without its stack."""
        return self._resolver.open_calls(Sample(sample))

    def resolve_thread(self, sample: bytes) -> Resolved:
        """
        Return the stack of a thread, by the sample of a thread dump.

        Send its records before any record that refers to it.
        """
        _, _, _, ktime_ns, _, _, _ = wire.RECORD_HEADER.unpack_from(sample)
        return self._resolve_sample(sample, NO_API, ktime_ns)

    def _resolve_sample(
        self, record: bytes, api: int, ktime_ns: int, *, is_tick: bool = False
    ) -> Resolved:
        try:
            sample = Sample(record)
        except ValueError:
            self._counts[StackCount.REJECTED] += 1
            return NOTHING
        was_walked = sample.python_status != wire.PYTHON_NONE
        if sample.python_frames and not self._trusts(sample.program):
            sample.forget_python()
        if is_tick:
            found = self._resolver.resolve_tick(sample, ktime_ns)
        else:
            found = self._resolver.resolve(sample, api, ktime_ns)
        if found.lacks_python and (was_walked or self._cannot_know(sample.program)):
            self._lose_python()
        self._counts[StackCount.MEMO_HITS] += not found.walked
        self._counts[StackCount.DISTINCT] += len(found.records)
        return found


def _api_of(record: bytes) -> int:
    position = _APIS.get(record[:2], NO_API)
    if position is None or position == NO_API:
        return _NOT_AN_API if position is None else NO_API
    return int.from_bytes(record[position : position + _API_BYTES], "little")


def _with_stack(record: bytes, position: int, stack: int) -> bytes:
    identity = stack.to_bytes(_TOKEN_BYTES, "little")
    return b"".join((record[:position], identity, record[position + _TOKEN_BYTES :]))
