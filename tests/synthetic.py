"""Records as the kernel side would send them, from the values that matter to a test."""

from otel_gpu import wire
from otel_gpu.wire.readings import TimesKey

_LAYOUTS = {
    wire.RECORD_CUDA_CALL: wire.CUDA_CALL_RECORD,
    wire.RECORD_STALL: wire.STALL_RECORD,
    wire.RECORD_GAP: wire.GAP_RECORD,
    wire.RECORD_CPU_SAMPLE: wire.CPU_SAMPLE_RECORD,
    wire.RECORD_FORK: wire.FORK_RECORD,
    wire.RECORD_EXEC: wire.EXEC_RECORD,
    wire.RECORD_EXIT: wire.EXIT_RECORD,
    wire.RECORD_LIBRARY: wire.LIBRARY_RECORD,
    wire.RECORD_DEVICE: wire.DEVICE_RECORD,
    wire.RECORD_BLOCK_STACK: wire.BLOCK_STACK_RECORD,
    wire.RECORD_OUT_OF_MEMORY: wire.OUT_OF_MEMORY_RECORD,
    wire.RECORD_THREAD_CONTEXT: wire.THREAD_CONTEXT_RECORD,
    wire.RECORD_STEP: wire.STEP_RECORD,
    wire.RECORD_RANGE: wire.RANGE_RECORD,
}
_DEFAULTS = {
    wire.RECORD_STALL: {"kernel_stack": -1, "system_call": -1},
    wire.RECORD_GAP: {"device": -1, "choices": wire.CHOICE_SLOW},
    wire.RECORD_CPU_SAMPLE: {"kernel_stack": -1, "context": wire.CONTEXT_OTHER},
}
_TEXT_FIELDS = {
    *("comm", "culprit_comm", "waker_comm", "path", "name", "uuid", "domain", "text"),
    *("trace_id", "span_id", "parent_span_id"),
}
_DIMENSIONS = {"grid", "block"}
_BLANKS = {
    kind: dict.fromkeys(layout.fields, 0)
    | {name: b"" for name in layout.fields if name in _TEXT_FIELDS}
    | {"kind": kind, "size": layout.size}
    | _DEFAULTS.get(kind, {})
    for kind, layout in _LAYOUTS.items()
}


def kernel_record(kind: int, **values) -> bytes:
    """
    A record of ``kind`` with these values; all others are 0, empty or "none".

    Text may be given as ``str``; ``grid`` and ``block`` as three numbers.
    """
    blank = _BLANKS[kind]
    for name in _DIMENSIONS & values.keys():
        values |= {f"{name}_{axis}": n for axis, n in enumerate(values.pop(name))}
    for name in _TEXT_FIELDS & values.keys():
        if isinstance(values[name], str):
            values[name] = values[name].encode()
    record = blank | values
    assert len(record) == len(blank), values.keys() - blank.keys()
    layout = _LAYOUTS[kind]
    return layout.pack(*map(record.__getitem__, layout.fields))


def call_record(**values) -> bytes:
    """A chosen CUDA call, outermost on its thread unless said otherwise."""
    start = values.get("start_ktime_ns", 0)
    defaults = {
        "root_start_ktime_ns": start,
        "device": -1,
        "weight": 1,
        "copy_kind": wire.COPY_NONE,
        "choices": wire.CHOICE_FULL,
    }
    return kernel_record(wire.RECORD_CUDA_CALL, **(defaults | values))


def series(
    *,
    program_ktime_ns,
    pid,
    metric,
    buckets,
    sum,  # noqa: A002 - the field's name
    min,  # noqa: A002 - the field's name
    max,  # noqa: A002 - the field's name
    api=0,
    status=0,
    device=-1,
    copy_kind=wire.COPY_NONE,
    nested=0,
    size_bytes=0,
) -> tuple[bytes, bytes]:
    """One series as the map holds it: key and value; ``buckets`` is {number: count}."""
    counts = [0] * wire.MAX_BUCKETS
    for number, count in buckets.items():
        counts[number] = count
    key = wire.AGGREGATE_KEY.pack(
        program_ktime_ns, pid, status, device, metric, api, copy_kind, nested
    )
    complement = ~min & (1 << 64) - 1
    return key, wire.AGGREGATE.pack(sum, complement, max, size_bytes, *counts)


def times_entry(
    *,
    program_ktime_ns,
    pid,
    state,
    context,
    time_ns,
    count=1,
    kernel_stack=-1,
    system_call=-1,
    flags=0,
    ended_ns=None,
    who_comm="",
    end_comm="",
    **others,
) -> tuple[bytes, bytes]:
    """
    One entry of the time account as the map holds it: key and value.

    All of it has ended unless ``ended_ns`` is given; ``others`` are of ``TimesKey``.
    """
    key = TimesKey(
        program_ktime_ns, pid, kernel_stack, system_call, state, context, flags, **others
    )
    ended_ns = time_ns if ended_ns is None else ended_ns
    value = wire.TIMES.pack(time_ns, count, ended_ns, who_comm.encode(), end_comm.encode())
    return wire.TIMES_KEY.pack(*key), value
