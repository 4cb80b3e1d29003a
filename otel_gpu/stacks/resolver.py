"""
Makes the merged stack of a sample, or finds the equal one that was made before.

The id of a stack is a hash of its content. So the same stack has the same id in every process, host and
run, and is sent once.
"""

import math
from bisect import bisect_right
from collections.abc import Hashable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, Generic, NamedTuple, TypeVar

from otel_gpu import wire
from otel_gpu.limits.recent import Recent
from otel_gpu.procfs.mapped_files import is_c_library, is_cuda_library, is_preload_library
from otel_gpu.stacks import mappings
from otel_gpu.stacks.merging import lacks_python, merge
from otel_gpu.stacks.python.code_objects import CodeObjects
from otel_gpu.stacks.resolved_programs import MappedProgram, MappedPrograms
from otel_gpu.stacks.samples import Sample
from otel_gpu.stacks.symbols.native_names import Symbols
from otel_gpu.stacks.unwind.cached_suffixes import CachedSuffixes
from otel_gpu.stacks.unwind.cached_walks import Walks
from otel_gpu.stacks.unwind.unwinder import RETURN_ADDRESS_BYTES, Unwinder
from otel_gpu.wire.agent_records import json_record
from otel_gpu.wire.frames import Frame, FrameType, MergedStack, NativeStack, PythonStack
from otel_gpu.wire.probe_symbols import api_of_symbol
from otel_gpu.wire.probe_table import API_BY_NUMBER

MAX_SENT: Final = 4096
"""Stacks that are remembered as sent; an evicted one is sent again."""

NO_API: Final = -1
"""For a waiting thread: the API is on its stack anyway."""

_MAX_BEGINNINGS: Final = 3
_MAX_FUNCTIONS: Final = 1 << 14
_MAX_PYTHON: Final = 1 << 12

# How long a walk is valid: a library can become known, generated code can be replaced, and a name can
# become known.
_INCOMPLETE_AGE_NS: Final = 1_000_000_000
_GENERATED_CODE_AGE_NS: Final = 5_000_000_000
_NAMELESS_AGE_NS: Final = 60_000_000_000
_MANGLED: Final = ("_Z", "_R")

_What = TypeVar("_What")


class Resolved(NamedTuple):
    """
    The stack of a sample.

    ``lacks_python``: it runs Python without any Python line. ``records`` has its RECORD_USER_STACK, if
    it must be sent now. ``walked`` is false if the stack was known without a walk.
    """

    stack: int
    complete: bool
    lacks_python: bool = False
    records: tuple[bytes, ...] = ()
    walked: bool = True


class OpenFrame(NamedTuple):
    """An open API call: the number of the API, and the stack pointer at its entry."""

    api: int
    stack_pointer: int


class OpenFrames(NamedTuple):
    """The open API calls of a thread, the outermost first; an incomplete stack lacks some."""

    calls: tuple[OpenFrame, ...]
    complete: bool


NOTHING: Final = Resolved(0, complete=False)
"""The result for a record without a sample."""


class _Shared(Generic[_What]):
    # One object for all equal values, so that two of them compare by identity.

    __slots__ = ("what",)

    def __init__(self, what: _What) -> None:
        self.what = what


class Resolver:
    """Makes merged stacks and caches them."""

    def __init__(
        self, processes: MappedPrograms, codes: CodeObjects, unwinder: Unwinder, symbols: Symbols
    ) -> None:
        self._processes = processes
        self._codes = codes
        self._unwinder = unwinder
        self._symbols = symbols
        self._walks = Walks()
        # For ticks: by generation and address, by program and sample, and by all parts of a stack.
        self._suffixes = CachedSuffixes()
        # Functions and suffixes, with when they expire.
        self._functions: Recent[tuple[int, int], tuple[_Shared[Frame], float]] = Recent(
            _MAX_FUNCTIONS, cache="stack_frames"
        )
        self._frames: Recent[Frame, _Shared[Frame]] = Recent(_MAX_FUNCTIONS, cache="stack_frames")
        self._python: Recent[tuple[Hashable, ...], _Shared[PythonStack]] = Recent(
            _MAX_PYTHON, cache="stack_frames"
        )
        self._pythons: Recent[PythonStack, _Shared[PythonStack]] = Recent(
            _MAX_PYTHON, cache="stack_frames"
        )
        self._merged: Recent[tuple[Hashable, ...], int] = Recent(MAX_SENT, cache="stacks")
        # By id.
        self._sent: Recent[int, Resolved] = Recent(MAX_SENT, cache="stacks")

    def resolve(self, sample: Sample, api: int, ktime_ns: int) -> Resolved:
        """
        Return the stack of a sample with the present mappings.

        ``api`` is the number of the called API, which goes on top; ``NO_API`` for a waiting thread.
        """
        process = self._processes.get(sample.program)
        words = sample.words()
        key = (
            sample.program,
            process.generation,
            api,
            sample.registers._replace(frame_pointer=0),
            sample.python_status,
            sample.returns,
            sample.python_frames,
            len(words),
        )
        frame_pointer = sample.registers.frame_pointer
        known = self._walks.find(key, words, frame_pointer=frame_pointer, ktime_ns=ktime_ns)
        sent = self._sent.use(known) if known is not None else None
        if sent is not None:
            return sent._replace(walked=False)
        returns = dict(wire.SAVED_RETURN.iter_unpack(sample.returns))
        native = self._unwinder.unwind(
            sample.registers, sample.stack, find=process.find, returns=returns
        )
        frames = [
            self._native_frame(process, address - 1 if position or api != NO_API else address)[0]
            for position, address in enumerate(native.addresses)
        ]
        native, frames = _without_preload(native, frames)
        python = self._python_stack(sample)
        merged = merge(native, frames, python=python, call=_call_frame(process, api))
        if all(frame.function for frame in python.frames):
            # Otherwise a code object is unknown so far.
            ends_ktime_ns = _end_of(frames, ktime_ns)
            if not native.complete:
                ends_ktime_ns = ktime_ns + _INCOMPLETE_AGE_NS
            self._walks.keep(
                key,
                words,
                positions=native.words,
                stack=merged.identity,
                frame_pointer=frame_pointer if native.uses_frame_pointer else None,
                ends_ktime_ns=ends_ktime_ns,
            )
        return self._send(merged, ktime_ns)

    def resolve_tick(self, sample: Sample, ktime_ns: int) -> Resolved:
        """
        Return the stack of a thread that a tick interrupted on a CPU.

        A tick interrupts a function anywhere, so walks hardly ever repeat. The functions repeat: so the
        stack has functions, without positions in native code.
        """
        process = self._processes.get(sample.program)
        native, functions = self._walk_tick(process, sample, ktime_ns)
        names = (sample.program, sample.python_status, sample.python_frames)
        python = self._python.use(names)
        if python is None:
            stack = self._python_stack(sample)
            python = self._pythons.use(stack)
            if python is None:
                python = self._pythons[stack] = _Shared(stack)
            if all(frame.function for frame in stack.frames):
                self._python[names] = python
        tops = native.stack_pointers
        key = (
            *functions,
            python,
            native.complete,
            native.method,
            *(bisect_right(tops, place) if place else -1 for place in python.what.places),
        )
        known = self._merged.use(key)
        sent = self._sent.use(known) if known is not None else None
        if sent is not None:
            return sent._replace(walked=False)
        merged = merge(native, [function.what for function in functions], python.what)
        found = self._send(merged, ktime_ns)
        self._merged[key] = found.stack
        return found

    def _walk_tick(
        self, process: MappedProgram, sample: Sample, ktime_ns: int
    ) -> tuple[NativeStack, tuple["_Shared[Frame]", ...]]:
        find, generation = process.find, process.generation
        if sample.returns:
            returns = dict(wire.SAVED_RETURN.iter_unpack(sample.returns))
            native = self._unwinder.unwind(
                sample.registers, sample.stack, find=find, returns=returns
            )
            return native, self._functions_at(process, native.addresses, ktime_ns)
        suffixes = self._suffixes.of(generation)
        native, suffix, new = self._unwinder.unwind_to(
            suffixes, sample.registers, stack=sample.stack, find=find
        )
        # More mappings can have become known since.
        if process.generation == generation:
            for lookup, one in new:
                self._suffixes.add(generation, lookup, one)
        if suffix is None:
            return native, self._functions_at(process, native.addresses, ktime_ns)
        outer = len(native.addresses) - len(suffix.addresses)
        if suffix.named is not None and ktime_ns < suffix.named[1]:
            return native, (
                *self._functions_at(process, native.addresses[:outer], ktime_ns),
                *suffix.named[0],
            )
        functions = self._functions_at(process, native.addresses, ktime_ns)
        outermost = functions[outer:]
        ends_ktime_ns = _end_of([function.what for function in outermost], ktime_ns)
        suffix.named = outermost, ends_ktime_ns
        return native, functions

    def _functions_at(
        self, process: MappedProgram, addresses: Sequence[int], ktime_ns: int
    ) -> tuple["_Shared[Frame]", ...]:
        return tuple(
            self._function(process, address - bool(position), ktime_ns)
            for position, address in enumerate(addresses)
        )

    def _send(self, merged: MergedStack, ktime_ns: int) -> Resolved:
        stack = merged.identity
        is_new = stack not in self._sent
        self._sent[stack] = found = Resolved(stack, merged.complete, lacks_python(merged))
        if not is_new:
            return found
        body = {"stack": stack, **merged._asdict()}
        record = json_record(wire.RECORD_USER_STACK, ktime_ns, body)
        return found._replace(records=(record,))

    def open_calls(self, sample: Sample) -> OpenFrames:
        """Return the open functions of CUDA libraries of a thread."""
        process = self._processes.get(sample.program)
        returns = dict(wire.SAVED_RETURN.iter_unpack(sample.returns))
        native = self._unwinder.unwind(
            sample.registers, sample.stack, find=process.find, returns=returns
        )
        found = []
        # The caller's stack pointer after the return is the one before the call.
        after = [*native.stack_pointers[1:], 0] if native.stack_pointers else []
        for position, (address, top) in enumerate(zip(native.addresses, after, strict=False)):
            at = address - 1 if position else address
            mapping = process.find(at)
            if top and mapping is not None and is_cuda_library(_module(mapping)):
                api = api_of_symbol(self._native_frame(process, at)[0].function)
                if api is not None:
                    found.append(OpenFrame(api[0].number, top - RETURN_ADDRESS_BYTES))
        return OpenFrames(tuple(reversed(found)), native.complete)

    def has_whole_chain(self, sample: Sample) -> bool:
        """
        Whether the frame pointers of a thread alone lead to all of its functions.

        Whether a function keeps one is constant, so the answer holds for each stack with the same
        chain. Only the start of a thread in the C library can be missing.
        """
        process = self._processes.get(sample.program)
        returns = dict(wire.SAVED_RETURN.iter_unpack(sample.returns))
        native = self._unwinder.unwind(
            sample.registers, sample.stack, find=process.find, returns=returns
        )
        chain = sample.frame_pointer_chain()
        inner, outer = native.addresses[1 : 1 + len(chain)], native.addresses[1 + len(chain) :]
        if not native.complete or inner != chain or len(outer) > _MAX_BEGINNINGS:
            return False
        places = [process.find(address - 1) for address in outer]
        begins = [bool(place and is_c_library(_module(place))) for place in places]
        # The first function of a process belongs to the program itself.
        return all(begins[:-1]) and begins != [False]

    def forget(self, programs: AbstractSet[Hashable]) -> None:
        """Forget the walks of some programs."""
        self._walks.forget(programs)

    def _function(self, process: MappedProgram, address: int, ktime_ns: int) -> "_Shared[Frame]":
        # Without the position in it.
        key = (process.generation, address)
        function, ends_ktime_ns = self._functions.get(key, (None, 0))
        if function is None or ktime_ns >= ends_ktime_ns:
            frame, offset = self._native_frame(process, address)
            frame = frame._replace(address=frame.address - offset)
            function = self._frames.use(frame)
            if function is None:
                function = self._frames[frame] = _Shared(frame)
            if frame.module:
                self._functions[key] = function, _end_of((frame,), ktime_ns)
        return function

    def _native_frame(self, process: MappedProgram, address: int) -> tuple[Frame, int]:
        # And the offset of a file's address in its function.
        mapping = process.find(address)
        if mapping is None:
            return Frame(FrameType.NATIVE, ""), 0
        function, offset = self._symbols.name(mapping, address) or ("", 0)
        module = _module(mapping)
        # An address of generated code has no meaning, and differs each time.
        if mapping.elf is None:
            return Frame(FrameType.NATIVE, function, module=module), 0
        return Frame(
            FrameType.NATIVE, function, module=module, address=address - mapping.bias
        ), offset

    def _python_stack(self, sample: Sample) -> PythonStack:
        frames: list[Frame] = []
        entries: list[int] = []
        places: list[int] = []
        is_open = True
        for code, offset, flags in wire.PYTHON_FRAME.iter_unpack(sample.python_frames):
            if flags & wire.PYTHON_FRAME_SHIM:
                # The end of a run with a known entry, or of one without frames.
                if is_open:
                    entries.append(len(frames) - 1)
                    places.append(0)
                places[-1] = code
                is_open = True
                continue
            frames.append(self._codes.frame(sample.program, code, offset))
            is_open = not flags & wire.PYTHON_FRAME_ENTRY
            if not is_open:
                entries.append(len(frames) - 1)
                places.append(0)
        return PythonStack(
            frames=tuple(frames),
            entries=tuple(entries),
            status=sample.python_status,
            places=tuple(places),
        )


def _end_of(frames: Sequence[Frame], ktime_ns: int) -> float:
    # Until when the functions at some addresses are valid.
    if not all(frame.module for frame in frames):
        return ktime_ns + _GENERATED_CODE_AGE_NS
    if all(frame.function and not frame.function.startswith(_MANGLED) for frame in frames):
        return math.inf
    return ktime_ns + _NAMELESS_AGE_NS


def _call_frame(process: MappedProgram, number: int) -> Frame | None:
    api = API_BY_NUMBER.get(number)
    return api and Frame(FrameType.NATIVE, api.name, module=process.library(api.layer))


def _without_preload(native: NativeStack, frames: list[Frame]) -> tuple[NativeStack, list[Frame]]:
    # Leave out functions of our own libraries around a call, which the program makes.
    kept = [at for at, frame in enumerate(frames) if not is_preload_library(frame.module)]
    if len(kept) == len(frames):
        return native, frames
    addresses = tuple(native.addresses[at] for at in kept)
    pointers = tuple(native.stack_pointers[at] for at in kept if native.stack_pointers)
    return native._replace(addresses=addresses, stack_pointers=pointers), [
        frames[at] for at in kept
    ]


def _module(mapping: mappings.Mapping) -> str:
    return mapping.path.rpartition("/")[2].removesuffix(" (deleted)")
