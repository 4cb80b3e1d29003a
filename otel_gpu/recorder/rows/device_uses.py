"""Results of analysing a trace as rows: the use of each device, its steps, and causes of idle time."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from otel_gpu.recorder.storable_text import clean, to_json
from otel_gpu.recorder.tables.columns import Row
from otel_gpu.wire.device_activity import DeviceTrace

MAX_WAITS: Final = 1_000
"""Rows of a device; further waits are added up by cause."""


def found_rows(trace: DeviceTrace) -> Iterator[tuple[str, Row, int]]:
    """Yield tables, rows from the column ``device`` on, and the bytes of text in each."""
    # Live agents write no traces, and do not need this import.
    from otel_gpu.explain.traces.device_use import DeviceUse, examine  # noqa: PLC0415 -- see above

    def rows_of(use: DeviceUse) -> Iterator[tuple[str, Row]]:
        device, base_ns, phases = use.device, trace.base_unix_ns, use.phases
        yield (
            "device_uses",
            (
                *(device, base_ns + use.start_ns, phases.window_ns, phases.compute_ns),
                *(phases.exposed_communication_ns, phases.exposed_copy_ns),
                phases.idle_ns if use.knows_idle else None,
                *(phases.communication_ns, phases.copy_ns, len(use.steps), use.verdict.verdict),
                use.verdict.useful if use.can_judge else None,
            ),
        )
        for step in use.steps:
            parts = step.phases
            yield (
                "device_steps",
                (
                    *(device, clean(step.name), base_ns + step.start_ns, step.duration_ns),
                    *(step.host_ns, parts.compute_ns, parts.exposed_communication_ns),
                    parts.exposed_copy_ns,
                    parts.idle_ns if use.knows_idle else None,
                    *(to_json(step.parts) or "{}", step.set_aside),
                ),
            )
        if not use.is_reliable:
            return
        for gap in use.gaps:
            cause, *named = gap.place
            when = base_ns + gap.start_ns, gap.duration_ns
            yield "device_gaps", (device, *when, str(cause), *map(clean, named))
        for (cause, *named), time_ns in use.places[:MAX_WAITS]:
            yield "device_waits", (device, str(cause), *map(clean, named), time_ns)
        rest: Counter[str] = Counter()
        for place, time_ns in use.places[MAX_WAITS:]:
            rest[str(place.cause)] += time_ns
        for name, time_ns in rest.items():
            yield "device_waits", (device, name, "", "", time_ns)

    for use in examine(trace):
        for table, row in rows_of(use):
            yield table, row, sum(len(value) for value in row if isinstance(value, str))
