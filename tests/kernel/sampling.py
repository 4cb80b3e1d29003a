"""
A capture without the agent: the BPF programs, probes on a library, and raw records.

Samples and code objects do not leave the agent, so only here tests see those of the kernel side. The
interpreter's layout is the one that the agent would find.
"""

import itertools
import json
import os
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from otel_gpu import wire
from otel_gpu.capture.bpf.programs import ENTER_CALL, EXIT_CALL, Programs
from otel_gpu.capture.probes.elf_exports import ElfSymbols
from otel_gpu.capture.probes.library_sites import LibrarySites
from otel_gpu.config import Config
from otel_gpu.stacks.python.layouts import OFFSETS_BYTES, layout_of
from otel_gpu.wire.probe_symbols import probes_of
from tests.kernel.agent import at_sites, environment_for
from tests.receiver import WAIT_TIMEOUT_S
from tests.stubs.build import WORKLOADS

PYTHON_WORKLOAD = WORKLOADS / "stacks.py"
_PID = struct.Struct("<I")
_ENCODINGS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}


class Code(NamedTuple):
    """A RECORD_CODE."""

    code: int
    name: str
    name_length: int
    file: str
    first_line: int
    version: int
    line_table: bytes
    line_table_length: int


class PythonFrame(NamedTuple):
    """A struct python_frame."""

    code: int
    offset: int
    is_entry: bool


class Sample(NamedTuple):
    """
    A RECORD_SAMPLE.

    ``returns`` are return addresses by stack address. ``shims`` are addresses of shim frames, each with
    the number of frames before it.
    """

    token: int
    pid: int
    tid: int
    instruction_pointer: int
    stack_pointer: int
    returns: dict[int, int]
    status: int
    frames: Sequence[PythonFrame]
    shims: Sequence[tuple[int, int]]
    stack: bytes

    def word(self, address: int) -> int:
        """Return the word of the stack at an address."""
        (word,) = struct.unpack_from("<Q", self.stack, address - self.stack_pointer)
        return int(word)


class Call(NamedTuple):
    """A RECORD_CUDA_CALL."""

    token: int
    tid: int
    depth: int
    return_ktime_ns: int


class Stall(NamedTuple):
    """A RECORD_STALL."""

    token: int
    tid: int
    start_ktime_ns: int
    end_ktime_ns: int


class Subject:
    """A program that answers each line of its input with one of JSON."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        folder = Path(command[0]).parent
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # One of the interpreters has libraries beside it that it does not look for.
            env=environment_for(None) | {"LD_LIBRARY_PATH": str(folder)},
        )
        self.about = self._read()
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, line: object) -> Any:
        """Send a line and return the answer."""
        assert self._process.stdin
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._read()

    def wait(self) -> None:
        """Wait for its end, after it was asked to end."""
        self._process.wait(WAIT_TIMEOUT_S)

    def read(self, address: int, size_bytes: int) -> bytes:
        """Read its memory."""
        with Path(f"/proc/{self.pid}/mem").open("rb", buffering=0) as memory:
            return os.pread(memory.fileno(), size_bytes, address)

    def write(self, address: int, data: bytes) -> None:
        """Write its memory."""
        with Path(f"/proc/{self.pid}/mem").open("r+b", buffering=0) as memory:
            os.pwrite(memory.fileno(), data, address)

    def _read(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the program ended"
        return json.loads(line)


class Capture:
    """
    Programs with probes on one library.

    Args:
        library: Whose calls are probed.
        config: Of the programs.
    """

    def __init__(self, library: Path, config: Config) -> None:
        self.programs = Programs(config, watch_all=False)
        with library.open("rb") as stream:
            symbols = ElfSymbols(stream)
            sites = LibrarySites(symbols, stream, are_chosen=at_sites())
            probes = sites.move(probes_of(symbols.functions))
        places = [(probe.file_offset, probe.api.number) for probe in probes]
        self.programs.attach()
        self.programs.bpf.attach_uprobes(EXIT_CALL, str(library), places, on_return=True)
        self.programs.bpf.attach_uprobes(ENTER_CALL, str(library), places)
        self._codes: dict[int, Code] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.programs.close()

    def watch(self, subject: Subject) -> int:
        """Watch a program and record all its calls; return its program_ktime_ns."""
        return self.programs.processes.watch(subject.pid, wire.PROCESS_FULL)

    def watch_python(self, subject: Subject) -> None:
        """Watch a Python program, with the layout of its frames."""
        runtime, version_hex = subject.about["runtime"], subject.about["version"]
        layout = layout_of(version_hex, subject.read(runtime, OFFSETS_BYTES))
        self.set_interpreter(subject, self.watch(subject), runtime, layout)

    def set_interpreter(
        self, subject: Subject, program_ktime_ns: int, runtime: int, layout: Sequence[int]
    ) -> None:
        """Set the layout of an interpreter."""
        self.programs.bpf.map("interpreters").update(
            _PID.pack(subject.pid),
            wire.INTERPRETER.pack(program_ktime_ns, runtime, runtime + 1, *layout),
        )

    def read(self) -> list[Code | Sample | Call | Stall]:
        """Return the records so far, oldest first."""
        return list(self._parse())

    def counters(self) -> dict[str, int]:
        """Return the counters of samples and of losses that are not zero."""
        values = self.programs.read_counters()
        return {
            name: values[number]
            for name, number in vars(wire).items()
            if name.startswith(("COUNTER_SAMPLES", "COUNTER_LOST")) and values[number]
        }

    def _parse(self) -> Iterator[Code | Sample | Call | Stall]:
        for record in self.programs.events.read():
            kind, _, size = struct.unpack_from("<HHI", record)
            assert size == len(record)
            if kind == wire.RECORD_CODE:
                yield _code(record)
            elif kind == wire.RECORD_SAMPLE:
                yield parse_sample(record)
            elif kind == wire.RECORD_CUDA_CALL:
                call = wire.CUDA_CALL_RECORD.named(record)
                yield Call(call["user_stack"], call["tid"], call["depth"], call["ktime_ns"])
            elif kind == wire.RECORD_STALL:
                stall = wire.STALL_RECORD.named(record)
                start_ktime_ns = stall["start_ktime_ns"]
                yield Stall(stall["user_stack"], stall["tid"], start_ktime_ns, stall["ktime_ns"])


class Observed:
    """A Python program, and its records."""

    def __init__(self, capture: Capture, subject: Subject) -> None:
        self.capture = capture
        self.subject = subject
        # Of waits before there was a call as well: a code is said once.
        self.codes = {found.code: found for found in capture.read() if isinstance(found, Code)}
        self._lost_before = self.lost_python

    @property
    def lost_python(self) -> int:
        """Return how many walks ended in an impossible frame."""
        return self.capture.counters().get("COUNTER_LOST_PYTHON", 0)

    @property
    def has_lost_python(self) -> bool:
        """Whether one of them was of this program."""
        return self.lost_python > self._lost_before

    @property
    def minor(self) -> int:
        """Of its version, 3.minor."""
        return int(self.subject.about["version"] >> 16 & 0xFF)

    def ask(self, scenario: str) -> tuple[list[Mapping[str, Any]], list[Sample]]:
        """Return the program's own description of its stacks, and the samples of its calls."""
        said = self.subject.ask(scenario)
        return said, self.take()

    def take(self) -> list[Sample]:
        """Return the samples of calls since the last time; codes come before their call."""
        samples: dict[int, Sample] = {}
        of_calls = []
        for found in self.capture.read():
            if isinstance(found, Code):
                self.codes[found.code] = found
            elif isinstance(found, Sample):
                samples[found.token] = found
            elif isinstance(found, Call):
                sample = samples[found.token]
                assert all(frame.code in self.codes for frame in sample.frames)
                of_calls.append(sample)
        return of_calls

    def names(self, sample: Sample) -> list[str]:
        """Return the names of the frames without what they are nested in."""
        return [self.codes[frame.code].name.rpartition(".")[2] for frame in sample.frames]

    def entries(self, sample: Sample) -> list[str]:
        """Return the names of the frames that C code called."""
        called = [frame.is_entry for frame in sample.frames]
        return list(itertools.compress(self.names(sample), called))


def samples_of_calls(records: Sequence[Code | Sample | Call | Stall]) -> list[Sample]:
    """Return the samples of calls, without those of long waits for a CPU."""
    calls = {found.token for found in records if isinstance(found, Call)}
    return [found for found in records if isinstance(found, Sample) and found.token in calls]


def _code(record: bytes) -> Code:
    whole = record.ljust(wire.CODE_RECORD.size, b"\0")
    fields = wire.CODE_RECORD.named(whole)
    fixed_bytes = wire.CODE_RECORD.size - wire.LINE_TABLE_BYTES
    assert fixed_bytes + fields["line_table_bytes"] <= len(record)
    return Code(
        fields["code"],
        _text(fields, "qualified_name"),
        fields["qualified_name.length"],
        _text(fields, "file"),
        fields["first_line"],
        fields["version"],
        fields["line_table"][: fields["line_table_bytes"]],
        fields["line_table_length"],
    )


def _text(fields: dict[str, Any], name: str) -> str:
    width = fields[f"{name}.character_bytes"]
    data = fields[f"{name}.data"][: fields[f"{name}.length"] * width]
    return str(data.decode(_ENCODINGS[width]))


def parse_sample(record: bytes) -> Sample:
    """Parse a RECORD_SAMPLE, or an entry of the map of samples of waits."""
    arrays_bytes = (
        wire.MAX_PYTHON_FRAMES * wire.PYTHON_FRAME.size + wire.MAX_RETURNS * wire.SAVED_RETURN.size
    )
    start = wire.SAMPLE_RECORD.size - arrays_bytes
    whole = record[:start] + bytes(arrays_bytes)
    fields = wire.SAMPLE_RECORD.named(whole)
    frames_end = start + fields["python_count"] * wire.PYTHON_FRAME.size
    returns_end = frames_end + fields["return_count"] * wire.SAVED_RETURN.size
    stack_end = returns_end + fields["stack_bytes"]
    assert stack_end <= len(record)
    frames: list[PythonFrame] = []
    shims = []
    for code, offset, flags in wire.PYTHON_FRAME.iter_unpack(record[start:frames_end]):
        if flags == wire.PYTHON_FRAME_SHIM:
            shims.append((len(frames), code))
        else:
            frames.append(PythonFrame(code, offset, flags == wire.PYTHON_FRAME_ENTRY))
    return Sample(
        fields["ktime_ns"],
        fields["pid"],
        fields["tid"],
        fields["instruction_pointer"],
        fields["stack_pointer"],
        dict(wire.SAVED_RETURN.iter_unpack(record[frames_end:returns_end])),
        fields["python_status"],
        frames,
        shims,
        record[returns_end:stack_end],
    )
