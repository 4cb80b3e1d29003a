"""What it costs to say in which span a thread is, to read that, and to find that nobody says it."""

import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from opentelemetry import context as contexts
from opentelemetry.sdk.trace import TracerProvider

from benchmarks.programs import file_offset, programs
from benchmarks.result import Result, spread
from benchmarks.subjects import Meter
from otel_gpu import wire
from otel_gpu.capture.bpf.bpf_map import BpfMap
from otel_gpu.capture.bpf.objects import BpfObject
from otel_gpu.capture.bpf.programs import ENTER_CALL, EXIT_CALL
from otel_gpu.capture.processes.thread_contexts import ContextPlaces, ThreadContexts
from otel_gpu.config import Config
from otel_gpu.instrumentation.distro import publish_context, publish_provider
from otel_gpu.instrumentation.thread_context import library_path
from otel_gpu.procfs.mapped_files import mapped_files
from tests.kernel.sampling import Capture
from tests.stubs.build import copy_of_runtime

SPAN_BOUND = 1.5
READ_BOUND = 1.5
OTHERS_BOUND = 1.1
LOOK_BOUND = 0.01
SPANS = 2_000
CALLS = 20_000
LOOKS = 100
# What tests/workloads/timed.c is in.
SPAN_ID = bytes(7) + b"\x03"
_STATISTICS = Path("/proc/sys/kernel/bpf_stats_enabled")


def run(*, quick: bool = False) -> list[Result]:
    """Measure the side that publishes, then the side that reads."""
    rounds = 9 if quick else 41
    return [published_span(rounds), *read_call(rounds)]


def published_span(rounds: int) -> Result:
    """Open and close spans of the SDK in turn with the runtime context of OpenTelemetry and ours."""
    plain, publishing = TracerProvider(), TracerProvider()
    before = contexts._RUNTIME_CONTEXT  # noqa: SLF001 -- as the distribution does
    published = publish_context()
    if published is None:
        raise RuntimeError("thread_context was not built for this machine: run make preload")
    publish_provider(publishing)
    samples = []
    try:
        for _ in range(rounds):
            contexts._RUNTIME_CONTEXT = before  # noqa: SLF001
            bare_ns = nanoseconds_per_span(plain)
            contexts._RUNTIME_CONTEXT = published  # noqa: SLF001
            samples.append((bare_ns, nanoseconds_per_span(publishing)))
    finally:
        contexts._RUNTIME_CONTEXT = before  # noqa: SLF001
    ratio = median(after / bare for bare, after in samples)
    added_ns = median(after - bare for bare, after in samples)
    return Result(
        what="CPU time of a span that is published",
        value=median(after for _, after in samples),
        unit="ns",
        floor=median(bare for bare, _ in samples),
        floor_is="the same span, not published",
        ratio=ratio,
        bound=f"<= {SPAN_BOUND} of the floor",
        held=ratio <= SPAN_BOUND,
        note=f"added {added_ns:,.0f} ns; without {spread([bare for bare, _ in samples])} ns",
    )


def nanoseconds_per_span(provider: TracerProvider) -> float:
    """Return the CPU time of a span that is current while it lasts, and does nothing."""
    tracer = provider.get_tracer("benchmarks")
    start_ns = time.thread_time_ns()
    for _ in range(SPANS):
        with tracer.start_as_current_span("span"):
            pass
    return (time.thread_time_ns() - start_ns) / SPANS


def read_call(rounds: int) -> list[Result]:
    """
    Let one program that is in a span make calls, while the kernel side knows of it and does not.

    Time is that of the programs at entry and return as the kernel sums it up, without the trap.
    """
    with tempfile.TemporaryDirectory() as folder:
        library = copy_of_runtime(Path(folder))
        with (
            Capture(library, Config()) as capture,
            Meter(library, library_path()) as meter,
            Meter(library) as other,
            programs() as bpf,
            statistics(),
        ):
            program_ktime_ns = capture.programs.processes.watch(meter.pid, 0)
            places = ContextPlaces(capture.programs.bpf, [])
            known = ThreadContexts(places)

            def nobody() -> None:
                known.forget(meter.pid)
                places.forget(other.pid)

            def another() -> None:
                nobody()
                places.set(
                    other.pid, bytes(capture.programs.bpf.map("thread_contexts").value_bytes)
                )

            def itself() -> None:
                nobody()
                known.examine(meter.pid, program_ktime_ns, list(mapped_files(meter.pid)))

            meter.nanoseconds_per_call(CALLS)
            samples = []
            for _ in range(rounds):
                sample = []
                for say in (nobody, another, itself):
                    say()
                    before_ns = time_of(capture.programs.bpf)
                    meter.nanoseconds_per_call(CALLS)
                    capture.read()
                    sample.append((time_of(capture.programs.bpf) - before_ns) / CALLS)
                samples.append(sample)
            assert was_read(capture.programs.bpf, meter.pid), "the programs read no context"
            look_ns = median(nanoseconds_per_look(bpf, library, other) for _ in range(rounds))
    nobody_ns = median(sample[0] for sample in samples)
    return [
        _reading("a call of a thread in a span", samples, 2, READ_BOUND),
        _reading("a call of others than who publishes", samples, 1, OTHERS_BOUND),
        Result(
            what="looking whether anybody publishes",
            value=look_ns,
            unit="ns",
            floor=nobody_ns,
            floor_is="programs of a call, nobody publishes",
            ratio=look_ns / nobody_ns,
            bound=f"<= {LOOK_BOUND} of the floor",
            held=look_ns <= LOOK_BOUND * nobody_ns,
        ),
    ]


def _reading(what: str, samples: list[list[float]], index: int, bound: float) -> Result:
    ratio = median(sample[index] / sample[0] for sample in samples)
    return Result(
        what=f"programs of {what}",
        value=median(sample[index] for sample in samples),
        unit="ns",
        floor=median(sample[0] for sample in samples),
        floor_is="the same call, nobody publishes",
        ratio=ratio,
        bound=f"<= {bound} of the floor",
        held=ratio <= bound,
        note=(
            f"added {median(sample[index] - sample[0] for sample in samples):.0f} ns; "
            f"nobody {spread([sample[0] for sample in samples])} ns"
        ),
    )


def nanoseconds_per_look(bpf: BpfObject, library: Path, meter: Meter) -> float:
    """Return the time of a look into an array, less that of the loop in which it is made."""
    place = [(file_offset(library), 0)]
    spent = bpf.map("spent")
    found = []
    for program in ("look_for_publishers", "look_for_nothing"):
        link = bpf.attach_uprobes(program, str(library), place)
        before = _spent(spent)
        meter.nanoseconds_per_call(LOOKS)
        after = _spent(spent)
        bpf.detach(link)
        found.append((after[0] - before[0]) / (after[1] - before[1]))
    return found[0] - found[1]


def _spent(map_: BpfMap) -> tuple[int, int]:
    raw = map_.lookup(bytes(4)) or bytes(16)
    return int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:], "little")


def was_read(bpf: BpfObject, pid: int) -> bool:
    """Say whether the kernel side knows in which span the meter's thread is."""
    raw = bpf.map("threads").lookup(struct.pack("<I", pid))
    place = wire.THREAD.fields.index("gap_span_id")
    return raw is not None and wire.THREAD.unpack(raw)[place] == struct.unpack("=Q", SPAN_ID)[0]


def time_of(bpf: BpfObject) -> int:
    """Return how long the programs of calls have run, in nanoseconds."""
    total_ns = 0
    for name in (ENTER_CALL, EXIT_CALL):
        about = Path(f"/proc/self/fdinfo/{bpf.program_fd(name)}").read_text(encoding="ascii")
        (line,) = (line for line in about.splitlines() if line.startswith("run_time_ns:"))
        total_ns += int(line.split()[1])
    return total_ns


@contextmanager
def statistics() -> Iterator[None]:
    """Let the kernel sum up the run time of programs for a while."""
    before = _STATISTICS.read_text(encoding="ascii")
    _STATISTICS.write_text("1", encoding="ascii")
    try:
        yield
    finally:
        _STATISTICS.write_text(before, encoding="ascii")
