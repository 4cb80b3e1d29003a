import json
from collections import defaultdict

import pytest

from otel_gpu import wire
from otel_gpu.capture.losses import AgentLoss
from otel_gpu.enrich.activities import DeviceTraceActivity
from otel_gpu.enrich.identity.attributes import describe, facts_of, host_of
from otel_gpu.enrich.identity.identities import Program, Resource
from otel_gpu.enrich.thread_times import NO_WAIT
from otel_gpu.explain.budget import ChainLimit
from otel_gpu.explain.chains import (
    Cause,
    Chain,
    Culprit,
    DeviceTrouble,
    Effect,
    Evidence,
    Incident,
)
from otel_gpu.explain.traces.idle_causes import IdleCause
from otel_gpu.explain.traces.trace_health import Fault
from otel_gpu.export import semconv
from otel_gpu.export.exports import open_exports
from otel_gpu.options import CaptureConfig, Config, ExportConfig, StacksConfig
from otel_gpu.state.traces.kernel_kinds import KernelKind
from otel_gpu.wire.communicators import Signature
from otel_gpu.wire.device_activity import Work
from otel_gpu.wire.frames import cut_frame
from otel_gpu.wire.readings import Aggregate
from tests.activities import (
    APIS_BY_NAME,
    EMPTY_FRAME,
    GPU,
    H100,
    MAIN_FRAME,
    SECOND,
    T0,
    aggregate,
    blocks,
    call,
    call_stack,
    calls,
    capture,
    copies,
    counters,
    device_fault,
    devices,
    ended,
    fork,
    forks,
    gap,
    image,
    lines_at,
    marked_range,
    open_call,
    out_of_memory,
    probes,
    sample,
    series,
    snapshot,
    stall,
    status,
    step,
    thread_time,
    times,
    totals,
)
from tests.adapters import fabric, port
from tests.collectives import FLOAT32, SUM, rank_of
from tests.unit.importers.traces import call as cuda_call
from tests.unit.importers.traces import host, kernel, read, trace, training, write
from tools.generate_semconv import MODULE, PAGE, module_text, page_text, read_registry

US = 1_000
MS = 1_000_000
POD = "275ecb36_5aa8_4c2a_9c47_d8bb681b9aff"
PROCESS = {
    "start_boot_ns": 1_000,
    "ppid": 41,
    "vpid": 1,
    "exe": "/usr/bin/python3.11",
    "command_args": ["python", "train.py"],
    "comm": "python",
    "owner": "alice",
    "env": {
        "PYTORCH_ALLOC_CONF": "a:b",
        "PYTORCH_CUDA_ALLOC_CONF": "a:b",
        "OTEL_SERVICE_NAME": "trainer",
    }
    | {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}
    | {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "pretrain"},
    "cgroups": [f"0::/kubepods.slice/kubepods-pod{POD}.slice/cri-containerd-{'ab' * 32}.scope"],
}


def process(pid=42):
    """A process image with every attribute that enrich can find."""
    program_ktime_ns = 5 * SECOND
    attributes = describe(pid, program_ktime_ns, facts_of(PROCESS, T0), host_of(capture().info))
    return Program(pid, program_ktime_ns, "python", T0 + program_ktime_ns, attributes)


def of_hardware(trainer):
    """What devices and network adapters say of themselves."""
    yield device_fault(19.5, 48, reported_by="nvml")
    yield device_fault(19.7, 31, reported_pid=99, reported_name="other")
    counted = {"port_xmit_data": 4, "port_xmit_packets": 1, "port_xmit_wait": 1}
    adapter = port(**counted, out_of_sequence=1, link_downed=1)
    facts = {"guid": "1", "firmware": "2", "model": "MT4129", "vendor": "0x15b3"}
    facts |= {"link_layer": "Ethernet", "interface": "ens1", "rate_bps": 8}
    yield fabric(20, adapter | facts, late=1, failed={"EIO": 1})
    yield devices(
        20,
        driver="580.65.06",
        gpus=[{**GPU, "bus_id": "00000000:4E:00.0"}],
        late=1,
        failed={"Timeout": 1},
    )
    yield device_fault(21, process=trainer, message="Ch 00000010")


def own_work(trainer):
    """What programs say of their own work."""
    for number in range(9):
        yield step(trainer, number, (12 + number) * SECOND, MS, name="train")
    started = {"range_kind": wire.RANGE_STARTED, "domain": "solver", "tid": 9}
    yield marked_range(trainer, "crossing", 20 * SECOND, MS, **started)
    yield step(trainer, 9, 21 * SECOND, 9 * MS, name="train", loader_wait_ns=MS)


def stream():
    """At least one activity of every kind, and every attribute that can be set."""
    trainer, child = process(), process(43)
    yield capture()
    # More than the store keeps without having seen an end: some are given up.
    yield snapshot(5, *(calls(image(pid=n), "cudaFree", [US]) for n in range(200, 400)))
    yield call(
        trainer,
        "cudaLaunchKernel",
        6 * SECOND,
        3 * MS,
        device=H100,
        status=700,
        stream=9,
        function=0x55D2C0A4B1F0,
        kernel="add<float>",
        grid=(128, 1, 1),
        block=(256, 1, 1),
        blocked_ns=MS,
        run_queue_ns=MS,
        voluntary_switches=1,
        involuntary_switches=1,
        weight=10,
        choices=wire.CHOICE_FAILED | wire.CHOICE_SAMPLED,
        cpu=1,
        stack=call_stack(complete=False),
    )
    yield call(
        trainer,
        "ibv_reg_mr",
        6 * SECOND,
        3 * MS,
        device=H100,
        status=12,
        size_bytes=4096,
        blocked_ns=MS,
        run_queue_ns=MS,
        voluntary_switches=1,
        involuntary_switches=1,
        weight=10,
        choices=wire.CHOICE_FAILED | wire.CHOICE_SAMPLED,
        cpu=1,
        stack=call_stack(complete=False),
    )
    raised = Aggregate(0, 0, 0, 0, (3,) + (0,) * (wire.MAX_BUCKETS - 1))
    yield snapshot(
        6,
        calls(trainer, "ibv_reg_mr", [US], size_bytes=4096),
        calls(trainer, "ibv_reg_mr", [US], status=12),
        series(trainer, wire.METRIC_ASYNC_EVENT, raised, copy_kind=10),
    )
    kinds = {"copy_kind": wire.COPY_HOST_TO_DEVICE, "size_bytes": 4096}
    yield call(trainer, "cudaMemcpyAsync", 7 * SECOND, MS, device=H100, **kinds)
    yield call(
        trainer,
        "ncclReduce",
        7 * SECOND + MS,
        MS,
        device=H100,
        status=1,
        size_bytes=4096,
        stream=9,
        address=0x9F3C1A52D0B84E0E,
        grid=(1024, 0, 7 | wire.COLLECTIVE_REDUCE << 16),
        block=(3, 17, 0),
        blocked_ns=MS,
        run_queue_ns=MS,
        voluntary_switches=1,
        involuntary_switches=1,
        weight=10,
        choices=wire.CHOICE_FAILED | wire.CHOICE_SAMPLED,
        cpu=1,
        stack=call_stack(complete=False),
    )
    yield open_call(
        trainer,
        "cudaDeviceSynchronize",
        8 * SECOND,
        20 * SECOND,
        device=H100,
        blocked_ns=1,
        run_queue_ns=1,
        stack=call_stack(complete=False),
    )
    yield open_call(trainer, "cudaMalloc", 1, 20 * SECOND)  # since before the capture
    yield stall(
        trainer,
        8 * SECOND,
        9 * SECOND,
        10 * SECOND,
        reason="lock",
        functions=("futex_wait_queue", "futex_wait"),
        flags=wire.STALL_IDLE_CPU,
        culprit_pid=7,
        culprit_tid=8,
        culprit_comm="hog",
        waker_pid=9,
        waker_tid=10,
        waker_comm="waker",
        switch_type=wire.SWITCH_VOLUNTARY,
        stack=call_stack(complete=False),
    )
    yield gap(
        trainer,
        "cudaMemcpyAsync",
        "cudaLaunchKernel",
        7 * SECOND,
        11 * SECOND,
        device=H100,
        blocked_ns=SECOND,
        run_queue_ns=SECOND,
        voluntary_switches=1,
        involuntary_switches=1,
    )
    yield stall(
        trainer,
        12 * SECOND,
        13 * SECOND,
        13 * SECOND,
        reason="unknown",
        switch_type=0,
    )
    for resource in (
        Resource("file", "/data/x", "nfs4", "/data", is_remote=True),
        Resource("tcp", "10.0.0.7:443", is_remote=True),
    ):
        yield stall(trainer, 13 * SECOND, 14 * SECOND, 14 * SECOND, resource=resource)
    stack = call_stack(frames=(EMPTY_FRAME, MAIN_FRAME, cut_frame(3)), complete=False)
    yield sample(trainer, 10 * SECOND, stack=stack, functions=("do_nanosleep",))
    yield blocks(trainer, 12, totals(10, 20, unsampled_bytes=3))
    sizes = {"device_total_bytes": 1 << 34, "api": APIS_BY_NAME["cudaMalloc"].number}
    yield out_of_memory(trainer, 12, 1 << 33, stack=call_stack(complete=False), **sizes)
    root = Signature(wire.COLLECTIVE_BROADCAST, 64, FLOAT32, SUM, 0)
    errors = {"failed": 1, "async_error": 6, "waited_ns": 1, "completions": 1}
    yield rank_of(trainer, 12, 8, 9, signature=root, completed=1, completed_at_s=9, **errors)
    yield from own_work(trainer)
    yield fork(trainer, child, 10 * SECOND, 10 * SECOND + MS)
    # In a span of the application.
    yield fork(trainer, child, 11 * SECOND, 11 * SECOND + MS)._replace(parent_span_id=b"S" * 8)
    yield stall(trainer, 11 * SECOND, 12 * SECOND, 13 * SECOND)._replace(parent_span_id=b"S" * 8)
    apart = ("cudaMemcpyAsync", "cudaLaunchKernel", 14 * SECOND, 15 * SECOND)
    yield gap(trainer, *apart)._replace(parent_span_id=b"S" * 8)
    yield call(trainer, "cudaMemcpyAsync", 16 * SECOND, MS)._replace(parent_span_id=b"S" * 8)
    names = [
        "cudaLaunchKernel",
        "cudaGraphLaunch",
        "cudaMalloc",
        "cudaFree",
        "cudaMemset",
        "cudaHostRegister",
        "cudaStreamCreate",
        "cudaStreamDestroy",
        "cudaStreamSynchronize",
        "cudaEventRecord",
        "cudaEventSynchronize",
        "cudaDeviceSynchronize",
    ]
    yield snapshot(
        20,
        *(calls(trainer, name, [3 * US], device=H100, size_bytes=64) for name in names),
        calls(trainer, "cudaMemcpy", [US], device=H100, copy_kind=wire.COPY_DEFAULT, status=1),
        calls(trainer, "ncclReduce", [US], device=H100, status=1),
        copies(trainer, [4096], device=H100),
        series(trainer, wire.METRIC_LAUNCH_GAP, aggregate([US]), device=H100),
        series(trainer, wire.METRIC_ELAPSED_TIME, aggregate([US]), device=H100),
        series(trainer, wire.METRIC_OFF_CPU, aggregate([US]), api=wire.SWITCH_VOLUNTARY),
        series(trainer, wire.METRIC_RUN_QUEUE, aggregate([US]), api=wire.SWITCH_INVOLUNTARY),
        forks(trainer, 1),
    )
    wait = NO_WAIT._replace(end=Culprit(5, 5, "loader"), end_state=wire.STATE_ON_CPU)
    waited = thread_time(trainer, wire.STATE_BLOCKED, wire.CONTEXT_GAP, SECOND, reason="ipc")
    waited = waited._replace(ended_ns=SECOND, wait=wait)
    yield times(20, thread_time(trainer, wire.STATE_ON_CPU, wire.CONTEXT_GAP, SECOND), waited)
    yield from of_hardware(trainer)
    yield counters(20, spans_chosen=3)
    figures = {"rejected": {"short": 1}, "dropped": {"queue_full": 1}}
    figures["stacks"] = {"resolved": 3, "incomplete": 1, "distinct": 2, "unused": 1}
    figures["stacks"] |= {"code_rejected": 1}
    figures |= {"errors": {"store": 1}, "skipped": {"store": 1}, "off": {"store": 1}}
    kinds = ("cache_entries", "cache_bytes", "cache_released")
    figures |= {kind: {"exported_spans": 1} for kind in kinds}
    yield status(20, cpu_ns=10, rss_bytes=20, preload_calls=30, **figures)
    yield probes(20, "/usr/lib/libcudart.so.13", 40, 44, counted=3)
    yield ended(image(pid=399), 21)


def device_traces(folder):
    """What devices did, with everything that can be said of it."""
    augment = host("train.py(7): augment", 5_100, 380, "python_function")
    optimizer = host("Optimizer.step#SGD.step", 5_700, 100, "user_annotation")
    fill = kernel(6_010, 50, 901, "Memset (Device)", bytes=64)
    fill["cat"] = "gpu_memset"
    model = {"id": 0, "name": "H100"}
    events = [
        *training(1, length_us=5_000),
        *training(5, first_us=5_000),
        augment,
        optimizer,
        cuda_call("cudaMemsetAsync", 6_000, 2, 901),
        fill,
        {**optimizer, "ph": "M", "name": "thread_name", "args": {"name": "trainer"}},
    ]
    head = {"distributedInfo": {"rank": 1, "world_size": 2}, "deviceProperties": [model]}
    made = read(write(folder / "trace.json", trace(events, **head)))
    yield made._replace(host_name="gpu-host")
    # There is no room for most of it.
    yield made._replace(source="b", is_dated=False, processes=220)
    for row, kind in enumerate(made.activities.kinds):
        if kind == Work.KERNEL:
            made.activities.kinds[row] = Work.GRAPH
    yield made._replace(source="c")


def chain(process):
    """A chain with everything that one can have, whose first link is to the stall above."""
    hog, worker = Culprit(7, 8, "hog"), Culprit(9, 10, "waker")
    at = T0 + 8 * SECOND
    span_id = stall(process, 8 * SECOND, 9 * SECOND, 10 * SECOND).span_id
    wait = Evidence("e1", "run_queue", at, at + MS, hog, None, "", (), span_id)
    functions = ("futex_wait",)
    stack = call_stack(complete=False)
    blocked = Evidence(
        "e2", "blocked", at, at + MS, None, worker, "lock", functions, span_id, stack
    )
    effect = Effect(
        "slow_call",
        process,
        "cudaMemcpyAsync",
        process.pid,
        "python",
        T0 + 7 * SECOND,
        MS,
        MS // 2,
        bytes(range(16)),
        bytes(range(8)),
        stack,
    )
    trouble = DeviceTrouble("uuid", 79, 0, "hw_thermal", 990, 1980)
    total = Cause("run_queue", MS // 100, 0.01, hog, (), (Cause("lock", 1, 0.01, hog, ()),))
    inner = Cause("ipc", MS // 100, 0.01, hog, (wait,), (total,), trouble=trouble)
    whole = Evidence("e4", "gap", at, at + MS)
    lines = lines_at(("step", 7, 3), work="gc", complete=False)
    worked = Cause("host_work", MS // 100, 0.01, hog, (whole,), lines=lines, trouble=trouble)
    counted = Evidence("e5", "counters", at, at + MS, reason="mlx5_0 port 1: 1 link_downed")
    network = Cause("network", 0, 0.0, None, (counted,))
    many = [Cause("run_queue", MS // 100, 0.01, hog, (wait, blocked), trouble=trouble)] * 100
    return Chain("c1", effect, (inner, total, worked, network, *many), 0, "high")


class Emitted:
    """What one run of everything wrote, by name."""

    def __init__(self, lines):
        self.metrics = {}
        self.spans = {}
        self.metric_attributes = defaultdict(set)
        self.span_attributes = defaultdict(set)
        self.span_events = defaultdict(set)
        self.event_attributes = defaultdict(set)
        self.log_attributes = defaultdict(set)
        self.values = defaultdict(set)
        self.profiles = {}
        self.resource_attributes = set()
        self.scopes = set()
        for line in lines:
            request = json.loads(line)
            dictionary = request.pop("dictionary", None)
            for signal, items in request.items():
                for item in items:
                    self._read_resource(signal, item, dictionary)

    def _read_resource(self, signal, item, dictionary):
        self.resource_attributes |= {a["key"] for a in item["resource"]["attributes"]}
        for scope in item[signal.replace("resource", "scope")]:
            self.scopes.add(scope["scope"]["name"])
            for metric in scope.get("metrics", ()):
                self._read_metric(scope["scope"]["name"], metric)
            for span in scope.get("spans", ()):
                key = (scope["scope"]["name"], span["name"])
                self.spans[key] = span["kind"]
                self.span_attributes[key] |= self._read_attributes(span)
                for event in span.get("events", ()):
                    self.span_events[key].add(event["name"])
                    self.event_attributes[event["name"]] |= self._read_attributes(event)
            for log in scope.get("logRecords", ()):
                self.log_attributes[log["eventName"]] |= self._read_attributes(log)
            for profile in scope.get("profiles", ()):
                self._read_profile(scope["scope"]["name"], profile, dictionary)

    def _read_profile(self, scope, profile, dictionary):
        texts, attributes = dictionary["stringTable"], dictionary["attributeTable"]

        def names(items):
            found = set()
            for number in {n for item in items for n in item.get("attributeIndices", ())}:
                name = texts[attributes[number]["keyStrindex"]]
                self.values[name].add(attributes[number]["value"].get("stringValue"))
                found.add(name)
            return found

        kind, unit = (texts[profile["sampleType"][key]] for key in ("typeStrindex", "unitStrindex"))
        self.profiles[scope, kind, unit] = (
            names(profile["samples"]),
            names(dictionary["locationTable"]),
        )

    def _read_metric(self, scope, metric):
        (kind,) = {"sum", "gauge", "histogram", "exponentialHistogram"} & metric.keys()
        if kind == "sum":
            kind = "counter" if metric["sum"].get("isMonotonic") else "updowncounter"
        name = metric["name"]
        self.metrics[name] = (scope, kind, metric.get("unit", ""), metric["description"])
        data = next(v for v in metric.values() if isinstance(v, dict))
        for point in data["dataPoints"]:
            self.metric_attributes[name] |= self._read_attributes(point)

    def _read_attributes(self, item):
        attributes = item.get("attributes", ())
        for attribute in attributes:
            values = attribute["value"].get("arrayValue", {}).get("values", [attribute["value"]])
            self.values[attribute["key"]] |= {v.get("stringValue") for v in values}
        return {attribute["key"] for attribute in attributes}


@pytest.fixture(scope="module")
def registry():
    return read_registry()


@pytest.fixture(scope="module")
def emitted(tmp_path_factory):
    lines = []
    for mode in ("event", "attribute", "log"):
        path = tmp_path_factory.mktemp("semconv") / "out.jsonl"
        run_everything(path, mode)
        lines += path.read_text().splitlines()
    return Emitted(lines)


FILE = Resource("file", "/data/a.bin", "nfs4", "/data", is_remote=True)
COLLECTIVE = Resource("collective", "all_reduce 41 of a communicator: not called by rank 2")
CONNECTION = Resource("tcp", "198.18.77.2:9000", is_remote=True)


def always(cause):
    """The same cause, as the account tells it."""
    evidence = Evidence("a", "account", T0, T0 + MS, stack=call_stack(complete=False))
    return cause._replace(evidence=(evidence,))


def run_everything(path, stacks_mode):
    config = Config(
        capture=CaptureConfig(max_series=64),
        stacks=StacksConfig(mode=stacks_mode),
        export=ExportConfig(otlp_file=str(path), profiles=True),
    )
    trainer = process()
    with pytest.MonkeyPatch.context() as patch:
        # Few enough that some are given up.
        patch.setattr("otel_gpu.export.metrics.exporter._LEAST_WAITING_SERIES", 64)
        with open_exports(config, {}, live=False) as exports:
            for activity in stream():
                exports.observe(activity)
            for made in device_traces(path.parent):
                exports.observe(DeviceTraceActivity(T0, made))
            exports.observe_chain(chain(trainer))
            for reason in ChainLimit:
                exports.limit_chains(reason, 1)
            gap_effect = chain(trainer).effect._replace(kind="slow_gap", trace_id=bytes(15) + b"g")
            exports.observe_chain(chain(trainer)._replace(id="c2", effect=gap_effect))
            said = gap_effect._replace(kind="network_event", api="IBV_EVENT_PORT_ERR")
            exports.observe_chain(chain(trainer)._replace(id="c3", effect=said))
            for name, resource in (("i1", FILE), ("i2", CONNECTION), ("i3", COLLECTIVE)):
                cause = always(chain(trainer).causes[0])._replace(resource=resource)
                advice, chains = ("Do something.",), (chain(trainer),)
                times = (T0, T0 + SECOND, MS)
                exports.observe_incident(
                    Incident(name, "high", *times, (cause,), 0, advice, chains, chronic=True)
                )
            exports.observe(counters(22))


def test_generated_files_are_up_to_date():
    """Whoever edits the registry also runs ``make semconv``."""
    registry = read_registry()

    assert MODULE.read_text() == module_text(registry)
    assert PAGE.read_text() == page_text(registry)


def test_every_loss_in_the_kernel_has_a_reason():
    """A new counter of losses cannot be forgotten in the registry."""
    losses = {
        number
        for number, name in wire.COUNTER_NAMES.items()
        if name.startswith("counter_lost_") or "rate_limited" in name
    }

    assert losses == semconv.REASON_VALUES.keys()


def test_every_loss_that_the_agent_counts_itself_is_a_reason(registry):
    """They have no counter in the kernel."""
    assert set(AgentLoss) <= set(registry["attributes"]["reason"]["examples"])


def test_every_metric_is_emitted_as_declared(emitted, registry):
    """
    Name, scope, instrument, unit and description: what is declared is emitted, and what
    is emitted is declared.
    """
    kinds = {"histogram": "exponentialHistogram"}
    declared = {
        name: (m["scope"], kinds.get(m["instrument"], m["instrument"]), m["unit"], m["brief"])
        for name, m in registry["metrics"].items()
    }

    assert emitted.metrics == declared


def test_every_metric_attribute_is_emitted_as_declared(emitted, registry):
    """The same for the attributes of each metric."""
    declared = {
        name: set(metric.get("attributes", ())) for name, metric in registry["metrics"].items()
    }

    assert dict(emitted.metric_attributes) == declared


def span_key(span):
    return span["scope"], span["name"]


def generic(key):
    """The name that the registry has for spans whose name holds an attribute's value."""
    scope, name = key
    if name.startswith(("cuda", "nccl", "ibv_")):
        return scope, "{gpu.cuda.api}"
    if scope == "otel_gpu.nvtx":
        return scope, "{nvtx range}"
    return scope, "gpu.cause.{otel_gpu.cause.kind}" if name.startswith("gpu.cause.") else name


def test_every_span_is_emitted_as_declared(emitted, registry):
    """Spans of CUDA calls are named after the API; all others have a name in the registry."""
    internal = 1
    declared = {span_key(span): internal for span in registry["spans"].values()}

    assert {generic(key): kind for key, kind in emitted.spans.items()} == declared


def test_every_span_attribute_is_emitted_as_declared(emitted, registry):
    """The same for the attributes of each kind of span."""
    attributes = defaultdict(set)
    for key, names in emitted.span_attributes.items():
        attributes[generic(key)] |= names
    declared = {span_key(span): set(span["attributes"]) for span in registry["spans"].values()}

    assert attributes == declared


def test_every_event_is_emitted_as_declared(emitted, registry):
    """Which events the spans have, and with which attributes."""
    events = defaultdict(set)
    for key, names in emitted.span_events.items():
        events[generic(key)] |= names
    named = {name: event["name"] for name, event in registry["events"].items()}

    assert events == {
        span_key(span): {named[event] for event in span["events"]}
        for span in registry["spans"].values()
        if "events" in span
    }
    assert emitted.event_attributes == {
        event["name"]: set(event["attributes"]) for event in registry["events"].values()
    }


def test_every_log_record_is_emitted_as_declared(emitted, registry):
    """And of log records."""
    assert emitted.log_attributes == {
        log["name"]: set(log["attributes"]) for log in registry["logs"].values()
    }


def test_every_profile_is_emitted_as_declared(emitted, registry):
    """And of profiles: what their values are, and the attributes of samples and of frames."""
    assert emitted.profiles == {
        (profile["scope"], *profile["type"]): (set(profile["attributes"]), set(profile["frames"]))
        for profile in registry["profiles"].values()
    }


def test_every_scope_is_emitted_as_declared(emitted, registry):
    """And for the scopes."""
    assert emitted.scopes == set(registry["scopes"])


def test_every_resource_attribute_is_emitted_as_declared(emitted, registry):
    """And for what describes an observed process or the agent."""
    assert emitted.resource_attributes == set(registry["resource_attributes"])


def test_values_are_among_those_that_are_declared(emitted, registry):
    """Where the registry lists the values of an attribute, no other one is emitted."""
    for name, attribute in registry["attributes"].items():
        if "values" in attribute and name != "reason":
            assert emitted.values[name] <= set(attribute["values"].values())
            assert emitted.values[name]


@pytest.mark.parametrize(
    ("attribute", "kinds"),
    [
        pytest.param(semconv.OTEL_GPU_IDLE_CAUSE, IdleCause, id="causes"),
        pytest.param(semconv.OTEL_GPU_WORK_KIND, KernelKind, id="kinds"),
        pytest.param(semconv.OTEL_GPU_FAULTS, Fault, id="faults"),
    ],
)
def test_all_values_that_there_can_be_are_declared(registry, attribute, kinds):
    """Also those that no trace here has."""
    assert set(registry["attributes"][attribute]["values"]) == set(kinds)


def test_every_declared_attribute_is_used(registry):
    """An attribute that nothing refers to was forgotten; the overflow may be on any metric."""
    used = {
        attribute
        for section in ("metrics", "spans", "events", "logs", "profiles")
        for item in registry[section].values()
        for attribute in (*item.get("attributes", ()), *item.get("frames", ()))
    }

    assert set(registry["attributes"]) - used == {"otel.metric.overflow"}
