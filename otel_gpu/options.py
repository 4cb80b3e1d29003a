"""
The table of options: each section is a frozen dataclass, each field of it one option.

This table and its docstrings are the source of the YAML keys, the environment variables, the flags
and ``docs/configuration.md``. Names end in the unit of the value.
"""

import dataclasses
import inspect
import itertools
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from otel_gpu import wire

ENVIRONMENT_PREFIX = "OTEL_GPU_"

_Value = TypeVar("_Value")


class Loader(StrEnum):
    """Values of ``capture.loader``."""

    AUTO = "auto"
    LIBBPF = "libbpf"
    BCC = "bcc"


class ReadVariables(StrEnum):
    """Values of ``capture.environment``."""

    ALL = "all"
    OTEL = "otel"
    NONE = "none"


class ForeignProbes(StrEnum):
    """Values of ``capture.foreign_probes``."""

    SAFE = "safe"
    ALL = "all"


class SpansMode(StrEnum):
    """Values of ``spans.mode``."""

    CHOSEN = "chosen"
    FULL = "full"
    NONE = "none"


class StacksMode(StrEnum):
    """Values of ``stacks.mode``."""

    EVENT = "event"
    ATTRIBUTE = "attribute"
    LOG = "log"
    NONE = "none"


class BlocksMode(StrEnum):
    """Values of ``memory.blocks``."""

    OFF = "off"
    TOTALS = "totals"
    LARGE = "large"
    ALL = "all"


class BucketLayout(StrEnum):
    """Values of ``histograms.layout``, and of the layouts in captures."""

    EXPONENTIAL = "exponential"
    EXPLICIT = "explicit"


class StoreUse(StrEnum):
    """Values of ``store.enabled``."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class LogLevel(StrEnum):
    """Values of ``log.level``."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    DEBUG = "debug"


class ValueKind(StrEnum):
    """The type of an option's values, as messages and docs name it."""

    TEXT = "text"
    BOOLEAN = "true or false"
    INTEGER = "integer"
    NUMBER = "number"
    NUMBERS = "list of numbers"


class Option(NamedTuple):
    """
    One row of the table; bounds are inclusive, and of each element of a list.

    ``check`` returns what is wrong with a value, or nothing.
    """

    section: str
    name: str
    default: Any
    text: str
    bounds: tuple[float, float] | None = None
    flag: str | None = None
    optional: bool = False
    check: Callable[[object], str | None] | None = None

    @property
    def key(self) -> str:
        """``section.name``, as messages and overrides name it."""
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"{ENVIRONMENT_PREFIX}{self.section}_{self.name}".upper()

    @property
    def choices(self) -> tuple[str, ...]:
        """All values, if these are few; else empty."""
        default = self.default
        return tuple(one.value for one in type(default)) if isinstance(default, StrEnum) else ()

    @property
    def kind(self) -> ValueKind:
        """The type of a value."""
        kinds = {
            bool: ValueKind.BOOLEAN,
            int: ValueKind.INTEGER,
            float: ValueKind.NUMBER,
            tuple: ValueKind.NUMBERS,
        }
        return kinds.get(type(self.default), ValueKind.TEXT)


def _option(default: _Value, **more: object) -> _Value:
    return dataclasses.field(default=default, metadata=more)


def _texts(section: type) -> dict[str, str]:
    found = re.findall(
        r"^ {4}(\w+): (.+(?:\n {8}.+)*)", inspect.getdoc(section) or "", re.MULTILINE
    )
    return {name: " ".join(text.split()) for name, text in found}


def _check_bounds(value: tuple[float, ...]) -> str | None:
    if len(value) > wire.MAX_BOUNDS:
        return f"has {len(value)} bounds, but at most {wire.MAX_BOUNDS} fit"
    if any(low >= high for low, high in itertools.pairwise(value)):
        return "must rise from each bound to the next"
    return None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CaptureConfig:
    """
    Limits of the kernel side, and how often the agent reads it.

    Attributes:
        loader: Source of the kernel's types: `libbpf` reads the kernel's BTF, `bcc` its headers;
            `auto` is `libbpf` where there is BTF.
        ring_buffer_bytes: Size of the ring buffer between the kernel and the agent; a power of two.
        max_threads: Maximum number of watched threads.
        max_processes: Maximum number of watched processes.
        max_series: Maximum number of series (histograms) in the kernel; calls beyond them are
            counted as lost.
        max_times: Maximum number of entries of thread times; beyond them, time keeps its state and
            context and loses details, such as the culprit.
        open_call_limit_s: A call that has been open for longer than this is reported while it
            hangs.
        snapshot_interval_s: How often the kernel's counters are read.
        discovery_interval_s: How often processes are searched for newly mapped CUDA libraries.
        cache_bytes: Estimated size limit of all caches of the agent together; the largest ones
            evict their least recently used entries first.
        environment: Environment variables of watched processes that are read: `all` that
            docs/security.md lists, `otel` for `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`
            only, or `none`.
        probe_sites: Probe functions at the first instruction that the kernel need not single-step,
            if the same calls pass it; off: at their entries.
        foreign_probes: Functions of third-party libraries that are probed on arm64: `safe`: only
            those that the kernel need not single-step, because single-stepping has corrupted
            processes there; `all`: also the others. On x86-64 all are safe.
        nice: How much the capturing thread raises its nice value above that of the agent, while no
            process and no full ring buffer waits for it; 0: not at all.
        drop_privileges: Drop the capabilities that docs/security.md does not list, and the ability
            to gain others; off: a capture as root keeps all of root's.
    """

    loader: Loader = _option(Loader.AUTO)
    ring_buffer_bytes: int = _option(
        8_388_608,
        bounds=(65_536, 1_073_741_824),
        check=lambda size: "must be a power of two" if size & (size - 1) else None,
    )
    max_threads: int = _option(16_384, bounds=(64, 1_048_576))
    max_processes: int = _option(4_096, bounds=(16, 1_048_576))
    max_series: int = _option(4_096, bounds=(64, 1_048_576))
    max_times: int = _option(32_768, bounds=(1_024, 1_048_576))
    open_call_limit_s: float = _option(10.0, bounds=(0.1, 86_400.0))
    snapshot_interval_s: float = _option(1.0, bounds=(0.1, 3_600.0))
    discovery_interval_s: float = _option(2.0, bounds=(0.1, 3_600.0))
    cache_bytes: int = _option(16_777_216, bounds=(1_048_576, 17_179_869_184))
    environment: ReadVariables = _option(ReadVariables.ALL)
    probe_sites: bool = _option(default=True)
    foreign_probes: ForeignProbes = _option(ForeignProbes.SAFE)
    nice: int = _option(10, bounds=(0, 19))
    drop_privileges: bool = _option(default=True)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DevicesConfig:
    """
    State of the host's devices, from NVML.

    Attributes:
        enabled: Read it. That needs the extra: `pip install otel-gpu[nvml]`.
        interval_s: How often. Reading wakes an unused device.
        kernel_log: The kernel's log, in which NVIDIA's driver reports which device failed, and for
            which process; empty: it is not read.
    """

    enabled: bool = _option(default=True)
    interval_s: float = _option(2.0, bounds=(1.0, 3_600.0))
    kernel_log: str = _option("/dev/kmsg")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FabricConfig:
    """
    Counters of the network adapters that do RDMA (InfiniBand, RoCE, EFA).

    Attributes:
        enabled: Read them. A host without such adapters has none.
        interval_s: How often.
        root: Folder in which the kernel shows them; in a container, the mount point of the host's.
    """

    enabled: bool = _option(default=True)
    interval_s: float = _option(1.0, bounds=(0.1, 3_600.0))
    root: str = _option("/sys/class/infiniband")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SpansConfig:
    """
    Which calls become spans. Metrics count all calls.

    Attributes:
        mode: `chosen`: failed, slow, stalled and sampled calls; `full`: every call; `none`: metrics
            only.
        slow_floor_us: A call faster than this never becomes a span for being slow.
        sample_one_in: One in this many calls becomes a span whatever its duration; 0: no sampling.
        rate_per_process: Maximum spans per second and process; the processes of one user together
            have eight times as many. Rate-limited spans are counted.
        stall_floor_ms: Shortest scheduler stall outside CUDA calls that becomes a span.
        call_stall_floor_ms: Shortest scheduler stall inside a CUDA call that becomes a span.
    """

    mode: SpansMode = _option(SpansMode.CHOSEN, flag="--spans")
    slow_floor_us: float = _option(100.0, bounds=(0.0, 6e7))
    sample_one_in: int = _option(1_000, bounds=(0, 4_294_967_295))
    rate_per_process: int = _option(1_000, bounds=(1, 1_000_000))
    stall_floor_ms: float = _option(10.0, bounds=(0.0, 3.6e6))
    call_stall_floor_ms: float = _option(1.0, bounds=(0.0, 3.6e6))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StacksConfig:
    """
    Stacks of recorded calls, and of threads that leave the CPU.

    Attributes:
        enabled: Capture stacks. They contain names of functions and paths of source files.
        mode: Place of a span's stack: an `event`, an `attribute`, a `log` record beside the span,
            or none (`none`).
    """

    enabled: bool = _option(default=True)
    mode: StacksMode = _option(StacksMode.EVENT, flag="--stacks")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplesConfig:
    """
    Samples of the lines that threads execute.

    Attributes:
        enabled: Sample the threads of watched processes while they are on a CPU; needs
            `stacks.enabled`, and a `spans.mode` other than `none`.
        rate_hz: Samples per second of each CPU that runs such threads, below the limit of
            `stacks_per_second`.
        stacks_per_second: Maximum samples per second of the whole host; beyond it fewer are taken,
            each with more weight. Rate-limited samples are counted.
    """

    enabled: bool = _option(default=True)
    rate_hz: int = _option(99, bounds=(1, 10_000))
    stacks_per_second: int = _option(200, bounds=(1, 100_000))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """
    Tracking of the blocks of device memory that a framework's allocator (PyTorch's) hands out.

    Attributes:
        blocks: `off`: none. `totals`: allocated and reserved bytes. `large`: also the code that
            allocated large blocks, and samples of small ones. `all`: the code that allocated each
            block.
        large_bytes: Minimum size of a large block.
        sample_bytes: One small block is sampled per this many bytes of small blocks, on average.
        stacks_per_second: Maximum new stacks of blocks per second; rate-limited ones are counted.
        blocks_per_second: Above this rate of allocations and frees, the blocks of a process are
            tracked in time windows only: totals stay right, holders are known for the window.
    """

    blocks: BlocksMode = _option(BlocksMode.LARGE)
    large_bytes: int = _option(1_048_576, bounds=(1, 1_099_511_627_776))
    sample_bytes: int = _option(1_048_576, bounds=(4_096, 1_099_511_627_776))
    stacks_per_second: int = _option(100, bounds=(1, 100_000))
    blocks_per_second: int = _option(10_000, bounds=(100, 10_000_000))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NcclConfig:
    """
    Collectives of NCCL.

    Attributes:
        pending_seconds: A rank that has called nothing for this long, and does not know its last
            collective to be complete, is reported in a log record.
    """

    pending_seconds: float = _option(2.0, bounds=(0.1, 86_400.0))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepsConfig:
    """
    Steps of training loops and servers.

    Attributes:
        find: Detect the steps of programs that do not mark them, from the repeating calls of their
            threads.
    """

    find: bool = _option(default=True)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HistogramsConfig:
    """
    Buckets of the kernel's histograms.

    Attributes:
        layout: `exponential`: OpenTelemetry exponential histograms; `explicit`: the bounds below.
        duration_bounds_s: Upper bounds in seconds for durations; needs `layout: explicit`. Empty: a
            default ladder.
        size_bounds_bytes: Upper bounds in bytes for sizes; needs `layout: explicit`. Empty: a
            default ladder.
    """

    layout: BucketLayout = _option(BucketLayout.EXPONENTIAL)
    duration_bounds_s: tuple[float, ...] = _option((), bounds=(1e-9, 1e6), check=_check_bounds)
    size_bounds_bytes: tuple[float, ...] = _option((), bounds=(1.0, 2.0**63), check=_check_bounds)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    """
    How telemetry is exported. Endpoints and protocols are the standard `OTEL_*` variables.

    Attributes:
        queue_bytes: Memory for spans that wait for a slow or dead endpoint; beyond it, the oldest
            spans of the user with the most are dropped and counted.
        batch_bytes: Maximum size of a request; receivers refuse more than 4 MiB by default.
        flush_interval_s: Maximum time that a span waits for its batch to fill.
        shutdown_timeout_s: Maximum time that the end of a run waits for the endpoint.
        otlp_file: Also write OTLP/JSON lines to this file; `-` is standard output.
        profiles: Export CPU samples as OTLP profiles, a signal that is in development and that few
            receivers accept.
        profile_interval_s: Maximum time that one profile covers.
    """

    queue_bytes: int = _option(33_554_432, bounds=(1_048_576, 17_179_869_184))
    batch_bytes: int = _option(3_500_000, bounds=(65_536, 67_108_864))
    flush_interval_s: float = _option(1.0, bounds=(0.05, 300.0))
    shutdown_timeout_s: float = _option(10.0, bounds=(0.1, 300.0))
    otlp_file: str | None = _option(None, flag="--otlp-file", optional=True)
    profiles: bool = _option(default=False)
    profile_interval_s: float = _option(10.0, bounds=(0.1, 3_600.0))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExplainConfig:
    """
    Causes of slow calls and gaps.

    Attributes:
        enabled: Search for causes, and export them as `gpu.causal_chain` and `gpu.incident` spans.
        chains_per_second: Maximum slow or failed calls and gaps per second that `run` and `top`
            explain: those that lost most time, divided evenly among users. The others are counted.
        high_lost_ms: An incident that cost less than this never has high severity.
        chronic_share: A cause that takes this share of the time of the launching threads is an
            incident, even if its calls are not slower than usual.
        chronic_lost_ms: Minimum time that such a cause takes in each second.
        chronic_window_s: Length of the windows that are searched for such causes.
    """

    enabled: bool = _option(default=True)
    chains_per_second: int = _option(50, bounds=(1, 100_000))
    high_lost_ms: float = _option(100.0, bounds=(0.0, 3.6e6))
    chronic_share: float = _option(0.05, bounds=(0.0, 1.0))
    chronic_lost_ms: float = _option(50.0, bounds=(0.0, 1e6))
    chronic_window_s: float = _option(10.0, bounds=(0.1, 86_400.0))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """
    The flight recorder: a file with the last hours.

    Attributes:
        enabled: `auto`: `run` writes it if no endpoint is set, or if a path is set; `on`: always;
            `off`: never.
        path: The file. Default: `$STATE_DIRECTORY/store.db` in a systemd service,
            `/var/lib/otel-gpu/store.db` for root, else `$XDG_STATE_HOME/otel-gpu/store.db`.
        max_bytes: Maximum size of the file and its log together; the oldest minutes are removed
            first.
        max_age_h: Rows written longer ago than this, in hours, are removed.
    """

    enabled: StoreUse = _option(StoreUse.AUTO)
    path: str | None = _option(None, flag="--store", optional=True)
    max_bytes: int = _option(1_073_741_824, bounds=(16_777_216, 1_099_511_627_776))
    max_age_h: float = _option(72.0, bounds=(0.01, 87_600.0))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """
    The agent's own log on standard error.

    Attributes:
        level: Log level; `-v` and `-vv` on the command line mean `info` and `debug`.
    """

    level: LogLevel = _option(LogLevel.WARNING)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All options; every part has defaults."""

    capture: CaptureConfig = dataclasses.field(default_factory=CaptureConfig)
    devices: DevicesConfig = dataclasses.field(default_factory=DevicesConfig)
    fabric: FabricConfig = dataclasses.field(default_factory=FabricConfig)
    spans: SpansConfig = dataclasses.field(default_factory=SpansConfig)
    stacks: StacksConfig = dataclasses.field(default_factory=StacksConfig)
    samples: SamplesConfig = dataclasses.field(default_factory=SamplesConfig)
    memory: MemoryConfig = dataclasses.field(default_factory=MemoryConfig)
    nccl: NcclConfig = dataclasses.field(default_factory=NcclConfig)
    steps: StepsConfig = dataclasses.field(default_factory=StepsConfig)
    histograms: HistogramsConfig = dataclasses.field(default_factory=HistogramsConfig)
    export: ExportConfig = dataclasses.field(default_factory=ExportConfig)
    explain: ExplainConfig = dataclasses.field(default_factory=ExplainConfig)
    store: StoreConfig = dataclasses.field(default_factory=StoreConfig)
    log: LogConfig = dataclasses.field(default_factory=LogConfig)


SECTIONS: Mapping[str, Any] = {
    section.name: section.default_factory for section in dataclasses.fields(Config)
}
OPTIONS: Mapping[str, Option] = {
    option.key: option
    for section, kind in SECTIONS.items()
    for texts in [_texts(kind)]
    for field in dataclasses.fields(kind)
    for option in [
        Option(
            section,
            field.name,
            default=field.default,
            text=texts.get(field.name, ""),
            **field.metadata,
        )
    ]
}
