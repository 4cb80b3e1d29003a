"""
Names of launched kernels, by the addresses and handles of launches.

A launch through the runtime passes a host address: that of a function made by nvcc with the kernel's
name. Other launches pass a handle, which the program got by a name (Triton's modules), or for another
handle or such an address (newer runtimes). Handles from before the capture have no names.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from otel_gpu import wire
from otel_gpu.limits.recent import GroupedRecent
from otel_gpu.stacks.resolved_programs import MappedPrograms
from otel_gpu.stacks.samples import ProcessKey
from otel_gpu.stacks.symbols.native_names import Symbols
from otel_gpu.wire.agent_records import json_record
from otel_gpu.wire.probe_table import API_BY_NUMBER

_MAX_KERNELS: Final = 1 << 15
# A handle of a handle of an address.
_MAX_STEPS: Final = 4
# A missing name can come later: symbols are read and demangled in the background.
_ASK_AGAIN_NS: Final = 1_000_000_000
_FUNCTION_AT: Final = wire.CUDA_CALL_RECORD.offset_of("function")
_FUNCTION: Final = slice(_FUNCTION_AT, _FUNCTION_AT + 8)
_API_AT: Final = wire.CUDA_CALL_RECORD.offset_of("api")
_API: Final = slice(_API_AT, _API_AT + 2)
_NAMED: Final = (1 << 64) - 1


class _Handle(NamedTuple):
    same_as: int
    name: str


class LaunchedKernels:
    """The kernels that processes launch; each is reported once, and again if its handle is reused."""

    def __init__(self, processes: MappedPrograms, symbols: Symbols) -> None:
        self._processes = processes
        self._symbols = symbols
        # By program and handle; for launched ones, until when they are not named again.
        self._handles: GroupedRecent[ProcessKey, int, _Handle] = GroupedRecent(
            _MAX_KERNELS, cache="kernel_names"
        )
        self._asked: GroupedRecent[ProcessKey, int, int] = GroupedRecent(
            _MAX_KERNELS, cache="kernel_names"
        )

    def take(self, record: bytes) -> None:
        """Add a HANDLE record."""
        fields = wire.HANDLE_RECORD.named(record)
        name = bytes(fields["name"]).partition(b"\0")[0].decode(errors="replace")
        key = (fields["pid"], fields["program_ktime_ns"]), fields["handle"]
        self._handles[key] = _Handle(fields["same_as"], name)
        self._asked.discard(key)

    def forget(self, program: ProcessKey) -> None:
        """Forget the kernels of a program that ended."""
        self._handles.forget(program)
        self._asked.forget(program)

    def name(self, call: bytes) -> Sequence[bytes]:
        """Return the FUNCTION record of the kernel that a CUDA_CALL record launches, if it is new."""
        function = int.from_bytes(call[_FUNCTION], "little")
        api = API_BY_NUMBER.get(int.from_bytes(call[_API], "little")) if function else None
        if api is None or api.family != wire.FAMILY_LAUNCH:
            return ()
        _, _, _, ktime_ns, program_ktime_ns, pid, _ = wire.RECORD_HEADER.unpack_from(call)
        program = (pid, program_ktime_ns)
        if ktime_ns < (self._asked.get((program, function)) or 0):
            return ()
        name = self._find(program, function)
        self._asked[program, function] = _NAMED if name else ktime_ns + _ASK_AGAIN_NS
        if not name:
            return ()
        body = {"function": function, "name": name}
        record = json_record(
            wire.RECORD_FUNCTION, ktime_ns, body, pid=pid, program_ktime_ns=program_ktime_ns
        )
        return (record,)

    def _find(self, program: ProcessKey, function: int) -> str:
        for _ in range(_MAX_STEPS):
            handle = self._handles.use((program, function))
            if handle is None:
                break
            if handle.name:
                return self._symbols.text(handle.name) or ""
            function = handle.same_as
        mapping = self._processes.get(program).find(function)
        name, offset = (mapping and self._symbols.name(mapping, function)) or ("", 0)
        # Not at an offset in another function, and not while it is mangled.
        return "" if offset or name.startswith("_Z") else name
