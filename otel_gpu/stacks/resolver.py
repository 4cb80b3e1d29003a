"""
Making a merged stack of a sample, or finding that it was made before.

A stack has an id that is a hash of what it shows. So the same stack has the same id in every
process, on every host and in every run, and is sent once.
"""

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from otel_gpu import wire
from otel_gpu.probe_table import API_BY_NUMBER, api_of_symbol
from otel_gpu.procfs.mapped_files import is_c_library, is_cuda_library
from otel_gpu.recent import Recent
from otel_gpu.records import json_record
from otel_gpu.stacks import mappings
from otel_gpu.stacks.code_objects import CodeObjects
from otel_gpu.stacks.frames import NATIVE, Frame, MergedStack, NativeStack, PythonStack
from otel_gpu.stacks.merging import merge
from otel_gpu.stacks.process_images import ProcessImage, ProcessImages
from otel_gpu.stacks.samples import Sample
from otel_gpu.stacks.symbols import Symbols
from otel_gpu.stacks.unwinder import RETURN_ADDRESS_BYTES, Unwinder
from otel_gpu.stacks.walks import Walks

MAX_SENT: Final = 8192
"""A stack that was not named while so many others were is sent again."""

NO_API: Final = -1
"""Of a thread that waits: what it waits in is on its stack by itself."""

_MAX_BEGINNINGS: Final = 3
_MAX_FUNCTIONS: Final = 1 << 14
_MAX_PYTHON: Final = 1 << 11

# How long a walk is believed. The library that it ended in may not have been known yet. Code
# that is made at run time can be replaced by other code. A name may become known.
_INCOMPLETE_AGE_NS: Final = 1_000_000_000
_GENERATED_CODE_AGE_NS: Final = 5_000_000_000
_NAMELESS_AGE_NS: Final = 60_000_000_000
_MANGLED: Final = ("_Z", "_R")


class Resolved(NamedTuple):
    """
    The stack of a sample.

    ``records`` holds its RECORD_USER_STACK, if it has to be sent now. ``walked`` is false when it
    was known without walking.
    """

    stack: int
    complete: bool
    records: tuple[bytes, ...] = ()
    walked: bool = True


class OpenFrame(NamedTuple):
    """A call of an API by its number, and the stack pointer at its entry."""

    api: int
    stack_pointer: int


class OpenFrames(NamedTuple):
    """The calls that a thread is in, the outermost first; not all, if its stack is not complete."""

    calls: tuple[OpenFrame, ...]
    complete: bool


NOTHING: Final = Resolved(0, complete=False)
"""Of a record whose sample is not there."""


class Resolver:
    """Makes merged stacks, and remembers them."""

    def __init__(
        self, processes: ProcessImages, codes: CodeObjects, unwinder: Unwinder, symbols: Symbols
    ) -> None:
        self._processes = processes
        self._codes = codes
        self._unwinder = unwinder
        self._symbols = symbols
        self._walks = Walks()
        # Of ticks: by generation and address, by all that a stack is merged of, and by image and sample.
        self._functions: Recent[tuple[int, int], Frame] = Recent(_MAX_FUNCTIONS)
        self._merged: Recent[tuple[Hashable, ...], int] = Recent(MAX_SENT)
        self._python: Recent[tuple[Hashable, ...], PythonStack] = Recent(_MAX_PYTHON)
        # By id: whether it is complete.
        self._sent: Recent[int, bool] = Recent(MAX_SENT)

    def resolve(self, sample: Sample, api: int, ktime_ns: int) -> Resolved:
        """
        Return the stack of a sample, as of now.

        The API that was called, by its number, goes on top; ``NO_API`` is for a thread that waits,
        wherever that is.
        """
        process = self._processes.get(sample.image)
        words = sample.words()
        key = (
            sample.image,
            process.generation,
            api,
            sample.registers._replace(frame_pointer=0),
            sample.python_status,
            sample.returns,
            sample.python_frames,
            len(words),
        )
        frame_pointer = sample.registers.frame_pointer
        known = self._walks.find(key, words, frame_pointer, ktime_ns)
        complete = self._sent.use(known) if known is not None else None
        if known is not None and complete is not None:
            return Resolved(known, complete, walked=False)
        returns = dict(wire.SAVED_RETURN.iter_unpack(sample.returns))
        native = self._unwinder.unwind(sample.registers, sample.stack, process.find, returns)
        frames = [
            self._native_frame(process, address - 1 if position or api != NO_API else address)[0]
            for position, address in enumerate(native.addresses)
        ]
        python = self._python_stack(sample)
        merged = merge(native, frames, python, _call_frame(process, api))
        if all(frame.function for frame in python.frames):
            # Else a code object is not known yet.
            age_ns = _age_of(native, frames)
            self._walks.keep(
                key,
                words,
                native.words,
                merged.identity,
                frame_pointer=frame_pointer if native.uses_frame_pointer else None,
                ends_ktime_ns=None if age_ns is None else ktime_ns + age_ns,
            )
        return self._send(merged, ktime_ns)

    def resolve_tick(self, sample: Sample, ktime_ns: int) -> Resolved:
        """
        Return the stack of a thread that was interrupted on a CPU, as of now.

        A tick interrupts functions anywhere, so hardly any walk is one that was made before: what
        repeats are the functions, and the stack has those, and not where in native code they were.
        """
        process = self._processes.get(sample.image)
        returns = dict(wire.SAVED_RETURN.iter_unpack(sample.returns))
        native = self._unwinder.unwind(sample.registers, sample.stack, process.find, returns)
        frames = [
            self._function(process, address - bool(position))
            for position, address in enumerate(native.addresses)
        ]
        names = (sample.image, sample.python_status, sample.python_frames)
        python = self._python.use(names)
        if python is None:
            python = self._python_stack(sample)
            if all(frame.function for frame in python.frames):
                self._python[names] = python
        tops = native.stack_pointers
        key = (
            *(tuple(frames), native.complete, native.method),
            *(python.frames, python.entries, python.status),
            tuple(bisect_right(tops, place) if place else -1 for place in python.places),
        )
        known = self._merged.use(key)
        complete = self._sent.use(known) if known is not None else None
        if known is not None and complete is not None:
            return Resolved(known, complete, walked=False)
        found = self._send(merge(native, frames, python), ktime_ns)
        self._merged[key] = found.stack
        return found

    def _send(self, merged: MergedStack, ktime_ns: int) -> Resolved:
        stack = merged.identity
        is_new = stack not in self._sent
        self._sent[stack] = merged.complete
        if not is_new:
            return Resolved(stack, merged.complete)
        body = {"stack": stack, **merged._asdict()}
        record = json_record(wire.RECORD_USER_STACK, ktime_ns, body)
        return Resolved(stack, merged.complete, (record,))

    def open_calls(self, sample: Sample) -> OpenFrames:
        """Return the functions of CUDA libraries that a thread is in."""
        process = self._processes.get(sample.image)
        returns = dict(wire.SAVED_RETURN.iter_unpack(sample.returns))
        native = self._unwinder.unwind(sample.registers, sample.stack, process.find, returns)
        found = []
        # Where the caller's stack pointer is after the return, it was before the call.
        after = [*native.stack_pointers[1:], 0] if native.stack_pointers else []
        for position, (address, top) in enumerate(zip(native.addresses, after, strict=False)):
            at = address - 1 if position else address
            mapping = process.find(at)
            if top and mapping is not None and is_cuda_library(_module(mapping)):
                api = api_of_symbol(self._function(process, at).function)
                if api is not None:
                    found.append(OpenFrame(api[0].number, top - RETURN_ADDRESS_BYTES))
        return OpenFrames(tuple(reversed(found)), native.complete)

    def has_whole_chain(self, sample: Sample) -> bool:
        """
        Say whether a thread's frame pointers alone lead to all functions that it is in.

        Which functions keep one does not change: so it is with each stack of the same chain. What
        is outside of it may only be where each thread begins, in the C library.
        """
        process = self._processes.get(sample.image)
        returns = dict(wire.SAVED_RETURN.iter_unpack(sample.returns))
        native = self._unwinder.unwind(sample.registers, sample.stack, process.find, returns)
        chain = sample.frame_pointer_chain()
        inner, outer = native.addresses[1 : 1 + len(chain)], native.addresses[1 + len(chain) :]
        if not native.complete or inner != chain or len(outer) > _MAX_BEGINNINGS:
            return False
        places = [process.find(address - 1) for address in outer]
        begins = [bool(place and is_c_library(_module(place))) for place in places]
        # The very first function of a process is the program's own.
        return all(begins[:-1]) and begins != [False]

    def forget(self, images: AbstractSet[Hashable]) -> None:
        """Forget how the stacks of some process images were walked."""
        self._walks.forget(images)

    def _function(self, process: ProcessImage, address: int) -> Frame:
        # Without the place in it. A name may become known that is not known yet.
        key = (process.generation, address)
        frame = self._functions.get(key)
        if frame is None:
            frame, offset = self._native_frame(process, address)
            frame = frame._replace(address=frame.address - offset)
            if frame.module and frame.function and not frame.function.startswith(_MANGLED):
                self._functions[key] = frame
        return frame

    def _native_frame(self, process: ProcessImage, address: int) -> tuple[Frame, int]:
        # And how far into its function an address of a file is.
        mapping = process.find(address)
        if mapping is None:
            return Frame(NATIVE, ""), 0
        function, offset = self._symbols.name(mapping, address) or ("", 0)
        module = _module(mapping)
        # Where code is not of a file, its address says nothing and is another each time.
        if mapping.image is None:
            return Frame(NATIVE, function, module=module), 0
        return Frame(NATIVE, function, module=module, address=address - mapping.bias), offset

    def _python_stack(self, sample: Sample) -> PythonStack:
        frames: list[Frame] = []
        entries: list[int] = []
        places: list[int] = []
        is_open = True
        for code, offset, flags in wire.PYTHON_FRAME.iter_unpack(sample.python_frames):
            if flags & wire.PYTHON_FRAME_SHIM:
                # The end of a run that has its entry already, or of one without frames.
                if is_open:
                    entries.append(len(frames) - 1)
                    places.append(0)
                places[-1] = code
                is_open = True
                continue
            frames.append(self._codes.frame(sample.image, code, offset))
            is_open = not flags & wire.PYTHON_FRAME_ENTRY
            if not is_open:
                entries.append(len(frames) - 1)
                places.append(0)
        return PythonStack(tuple(frames), tuple(entries), sample.python_status, tuple(places))


def _age_of(native: NativeStack, frames: Sequence[Frame]) -> int | None:
    if not native.complete:
        return _INCOMPLETE_AGE_NS
    if not all(frame.module for frame in frames):
        return _GENERATED_CODE_AGE_NS
    if all(frame.function and not frame.function.startswith(_MANGLED) for frame in frames):
        return None
    return _NAMELESS_AGE_NS


def _call_frame(process: ProcessImage, number: int) -> Frame | None:
    api = API_BY_NUMBER.get(number)
    return api and Frame(NATIVE, api.name, module=process.library(api.layer))


def _module(mapping: mappings.Mapping) -> str:
    return mapping.path.rpartition("/")[2].removesuffix(" (deleted)")
