"""The views of device memory: figures of allocators, holders, and failed requests."""

from otel_gpu.recorder.tables.columns import View
from otel_gpu.recorder.tables.memory import TOTALS_MEANINGS
from otel_gpu.recorder.views.view_sql import OWNER, PLACE, PROGRAM, utc

_SHOWN_TOTALS = (
    *("allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "peak_reserved_bytes"),
    *("allocations", "frees", "handed_out_bytes", "unsampled_bytes", "rate_limited_bytes"),
)

MEMORY_VIEWS: tuple[View, ...] = (
    View(
        "v_memory",
        "Figures of framework allocators per device, reading by reading, with names.",
        f"""
        SELECT e.seq, {utc("e.unix_ns")} AS time, {OWNER}, e.device, d.model AS device_model,
          e.allocated_bytes, e.reserved_bytes, e.peak_allocated_bytes, e.peak_reserved_bytes,
          max(0, e.before_bytes - e.before_freed_bytes) AS before_bytes,
          round(1 - e.unequal * 1.0 / nullif(e.allocations + e.frees, 0), 6) AS coverage,
          e.allocations, e.frees, e.handed_out_bytes, e.unsampled_bytes, e.rate_limited_bytes, e.unix_ns
        FROM memory_readings e LEFT JOIN processes p ON p.process = e.process
          LEFT JOIN devices d ON d.cuda_device = e.cuda_device
        WHERE e.allocated_bytes IS NOT NULL
        """,
        time="time of the reading, UTC",
        before_bytes=("bytes in use that were allocated before the capture began", "bytes"),
        coverage="share of reports whose total equals what was observed. NULL: unknown",
        **{name: TOTALS_MEANINGS[name] for name in _SHOWN_TOTALS},
    ),
    View(
        "v_memory_holders",
        "Device memory by line of the program: in use at its last reading, and ever "
        "allocated, with names.",
        f"""
        WITH latest AS (
          SELECT r.process, r.device, h.place_key, max(h.seq) AS seq
          FROM memory_holders h JOIN memory_readings r ON r.seq = h.seq GROUP BY 1, 2, 3)
        SELECT l.seq, {utc("r.unix_ns")} AS time, {OWNER}, l.device, {PLACE},
          sum(e.live_bytes) AS live_bytes, sum(e.live_blocks) AS live_blocks,
          sum(e.allocated_bytes) AS allocated_bytes, sum(e.allocated_blocks) AS allocated_blocks,
          r.unix_ns
        FROM latest l JOIN memory_holders e ON e.seq = l.seq AND e.place_key = l.place_key
          JOIN memory_readings r ON r.seq = l.seq
          LEFT JOIN processes p ON p.process = l.process {PROGRAM}
        GROUP BY l.process, l.device, u.stack
        """,
        time="time of the reading, UTC",
        live_bytes=(
            "bytes in use; sampled blocks count for the bytes that they represent",
            "bytes",
        ),
        live_blocks=("estimated number of these blocks", "{block}"),
        allocated_bytes=("bytes ever allocated there", "bytes"),
        allocated_blocks=("estimated number of these blocks", "{block}"),
    ),
    View(
        "v_out_of_memory",
        "Requests for device memory that failed, with names.",
        f"""
        SELECT e.seq, {utc("e.unix_ns")} AS time, {OWNER}, e.tid, e.comm AS thread, e.asked_bytes,
          e.device_free_bytes, e.allocated_bytes, e.reserved_bytes, e.device_total_bytes, e.device,
          coalesce(a.name, '') AS api, {PLACE}, e.unix_ns
        FROM out_of_memory e LEFT JOIN processes p ON p.process = e.process
          LEFT JOIN apis a ON a.api = e.api AND e.api <> 0 {PROGRAM}
        """,
        time="when it failed, UTC",
        unix_ns=("when it failed, in Unix time", "ns"),
        api="the failed call; empty: the allocator reported the failure",
        asked_bytes=("requested bytes", "bytes"),
        allocated_bytes=("bytes in use then", "bytes"),
        reserved_bytes=("bytes taken from the device then", "bytes"),
        device_free_bytes=("free bytes of the device", "bytes"),
        device_total_bytes=("total bytes of the device; 0: unknown", "bytes"),
    ),
)
