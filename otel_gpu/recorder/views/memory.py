"""The views of device memory: what there is, who holds it, and when there was too little."""

from otel_gpu.recorder.tables.columns import View
from otel_gpu.recorder.tables.memory import TOTALS_MEANINGS
from otel_gpu.recorder.views.view_sql import OWNER, PLACE, PROGRAM, utc

_SHOWN_TOTALS = (
    *("allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "peak_reserved_bytes"),
    *("allocations", "frees", "handed_out_bytes", "unsampled_bytes", "withheld_bytes"),
)

MEMORY_VIEWS: tuple[View, ...] = (
    View(
        "v_memory",
        "What allocators of frameworks said of devices, reading by reading, with names.",
        f"""
        SELECT e.seq, {utc("e.unix_ns")} AS time, {OWNER}, e.device, d.model AS device_model,
          e.allocated_bytes, e.reserved_bytes, e.peak_allocated_bytes, e.peak_reserved_bytes,
          max(0, e.before_bytes - e.before_freed_bytes) AS before_bytes,
          round(1 - e.unequal * 1.0 / nullif(e.allocations + e.frees, 0), 6) AS coverage,
          e.allocations, e.frees, e.handed_out_bytes, e.unsampled_bytes, e.withheld_bytes, e.unix_ns
        FROM memory_readings e LEFT JOIN processes p ON p.process = e.process
          LEFT JOIN devices d ON d.cuda_device = e.cuda_device
        WHERE e.allocated_bytes IS NOT NULL
        """,
        time="when it was read, UTC",
        before_bytes=("in use since before the attach", "bytes"),
        coverage="share of reports whose total was what had been seen. NULL: not known",
        **{name: TOTALS_MEANINGS[name] for name in _SHOWN_TOTALS},
    ),
    View(
        "v_memory_holders",
        "What each line of a program held when it was read last, and ever allocated, with names.",
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
        time="when it was read, UTC",
        live_bytes=("in use; sampled blocks count as what they stand for", "bytes"),
        live_blocks=("how many blocks that is, about", "{block}"),
        allocated_bytes=("ever allocated there", "bytes"),
        allocated_blocks=("how many blocks that were, about", "{block}"),
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
        api="the call that failed; empty: the allocator said so",
        asked_bytes=("what was asked for", "bytes"),
        allocated_bytes=("in use then", "bytes"),
        reserved_bytes=("taken from the device then", "bytes"),
        device_free_bytes=("what the device had free", "bytes"),
        device_total_bytes=("what the device has; 0: not known", "bytes"),
    ),
)
