"""What is held of the memory of devices in a live capture, as a document says it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from otel_gpu.decode.blocks import MemoryTotals
from otel_gpu.enrich.activities import ProcessImage, key_of
from otel_gpu.explain.chains import Failure
from otel_gpu.explain.memory_advice import advise
from otel_gpu.explain.out_of_memory import can_expand
from otel_gpu.findings.device_memory import Growth, Memory, MemoryReading
from otel_gpu.findings.memory_rows import failure_alarms, holdings, out_of_memory
from otel_gpu.ledger.balance import Taken, taken_by
from otel_gpu.ledger.blocks import By, DeviceBlocks
from otel_gpu.ledger.ledger import Figures
from otel_gpu.ledger.memory import Layer

FailuresOf = Mapping[tuple[int, int, int], Sequence[Failure]]
"""By pid and beginning of a process image, and the number of a device."""

_NOTHING = MemoryTotals(*[0] * len(MemoryTotals._fields))
_LAYERS: Mapping[str, Layer] = {"runtime": Layer.RUNTIME, "driver": Layer.DRIVER}


def block_rows(
    devices: Iterable[DeviceBlocks], failures: FailuresOf, mode: str | None
) -> Iterator[Memory]:
    """
    Yield what frameworks hold of devices.

    Args:
        devices: What they hold.
        failures: The requests that failed.
        mode: Which blocks were followed; None: not known.
    """
    for one in devices:
        failed = failures.get((*key_of(one.process), one.number), ())
        if one.totals is not None or failed:
            yield _row(one, failed, mode)


def _row(one: DeviceBlocks, failed: Sequence[Failure], mode: str | None) -> Memory:
    totals, peak, readings = one.totals or _NOTHING, one.peak, one.readings
    ooms = tuple(map(out_of_memory, failed))
    trends, full_in_s = one.trends, one.full_in_s
    return _blank(one.process, one.number, Layer.FRAMEWORK)._replace(
        live_bytes=totals.allocated_bytes,
        peak_bytes=totals.peak_allocated_bytes,
        peak_unix_ns=peak.unix_ns if peak else None,
        reserved_bytes=totals.reserved_bytes,
        peak_reserved_bytes=totals.peak_reserved_bytes,
        capacity_bytes=one.capacity_bytes or None,
        expandable_segments=can_expand(one.process.attributes),
        allocations=totals.allocations,
        frees=totals.frees,
        recorded_ns=readings[-1].unix_ns - readings[0].unix_ns if readings else None,
        holders=holdings(one.holders(By.PEAK)),
        end_holders=holdings(one.holders(By.IN_USE)),
        churn=holdings(one.holders(By.ALLOCATED)),
        ooms=ooms,
        alarms=tuple(failure_alarms(ooms)),
        advice=tuple(dict.fromkeys(text for failure in failed for text in advise(failure))),
        blocks=mode,
        before_bytes=one.before_bytes,
        unknown_bytes=one.unknown_bytes,
        coverage=one.coverage,
        readings=tuple(MemoryReading(*reading) for reading in readings),
        growth=tuple(
            Growth(
                trend.place.function,
                trend.place.file,
                trend.place.line,
                trend.bytes_per_s,
                trend.r_squared,
                trend.readings,
                full_in_s,
            )
            for trend in trends
        ),
    )


def layer_rows(
    figures: Iterable[Figures], failures: FailuresOf, known: frozenset[tuple[int, int, int]]
) -> Iterator[Memory]:
    """
    Yield what the calls of a runtime and of a driver took of devices since they were watched.

    Args:
        figures: What was counted.
        failures: The requests that failed.
        known: Of which devices of which images a framework says so: there, failures are told.
    """
    for one in figures:
        image = key_of(one.process)
        for (device, layer), taken in sorted(taken_by(one.series).items()):
            key = (*image, device)
            failed = () if key in known else failures.get(key, ())
            if layer in _LAYERS:
                yield _layer_row(one.process, device, _LAYERS[layer], taken, failed)


def _layer_row(
    process: ProcessImage, device: int, layer: Layer, taken: Taken, failed: Sequence[Failure]
) -> Memory:
    ooms = tuple(map(out_of_memory, failed))
    return _blank(process, max(0, device), layer)._replace(
        live_bytes=taken.live_bytes,
        reserved_bytes=taken.live_bytes,
        allocations=taken.allocations,
        frees=taken.frees,
        ooms=ooms,
        alarms=tuple(failure_alarms(ooms)),
        advice=tuple(dict.fromkeys(text for failure in failed for text in advise(failure))),
    )


def _blank(process: ProcessImage, device: int, layer: Layer) -> Memory:
    return Memory(
        pid=process.pid,
        device=device,
        layer=layer,
        live_bytes=0,
        peak_bytes=None,
        peak_unix_ns=None,
        reserved_bytes=0,
        peak_reserved_bytes=None,
        requested_bytes=None,
        rounding_bytes=None,
        pending_bytes=None,
        stuck_bytes=None,
        whole_free_bytes=None,
        largest_hole_bytes=None,
        capacity_bytes=None,
        expandable_segments=None,
        segments=None,
        allocations=0,
        frees=0,
        segment_allocations=None,
        segment_frees=None,
        recorded_ns=None,
        pools=(),
        holders=(),
        end_holders=(),
        churn=(),
        leaks=(),
        ooms=(),
        alarms=(),
        advice=(),
    )
