"""Rows of device memory in a live capture."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from otel_gpu.enrich.identity.identities import ProcessKey, Program, key_of
from otel_gpu.explain.chains import Failure
from otel_gpu.explain.kinds import CauseKind
from otel_gpu.explain.memory.advice import advise, keep_cache
from otel_gpu.explain.memory.allocator_churn import Churn
from otel_gpu.explain.memory.out_of_memory import can_expand
from otel_gpu.report.memory.snapshot import failure_alarms, holdings, out_of_memory
from otel_gpu.report.memory.types import DeviceMemory, GrowingLine, MemoryReading
from otel_gpu.report.wording.formats import count_of, describe_place, format_duration, format_size
from otel_gpu.report.wording.phrases import PHRASES
from otel_gpu.state.capture_state import Figures
from otel_gpu.state.memory.allocations import AllocationKey, Allocations
from otel_gpu.state.memory.blocks import By, DeviceBlocks
from otel_gpu.state.memory.call_balance import CallBalance, balance_calls
from otel_gpu.state.memory.sizes import files_of
from otel_gpu.state.memory.snapshot import Layer
from otel_gpu.wire.blocks import MemoryTotals
from otel_gpu.wire.probe_table import ApiLayer

FailuresOf = Mapping[tuple[int, int, int], Sequence[Failure]]
"""By pid and start of a program, and the number of a device."""

_MAX_CHURN = 8
# A peak this much above all readings is not covered by them.
_NEARLY = 1.02
_NOTHING = MemoryTotals(*[0] * len(MemoryTotals._fields))
_LAYERS = {ApiLayer.RUNTIME: Layer.RUNTIME, ApiLayer.DRIVER: Layer.DRIVER}


def block_rows(
    devices: Iterable[DeviceBlocks], failures: FailuresOf, mode: str | None
) -> Iterator[DeviceMemory]:
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


def block_notes(devices: Iterable[DeviceBlocks], pauses: Mapping[str, int]) -> Iterator[str]:
    """
    Yield notes on what is not known of frameworks' memory.

    Args:
        devices: The state of each device.
        pauses: Count and length of times without followed blocks; see
            ``capture.maps.block_windows``.
    """
    if count := pauses.get("pauses", 0):
        length = format_duration(pauses.get("paused_ms", 0) * 1e6)
        yield (
            f"More blocks were handed out than memory.blocks_per_second allows: {count_of(count, 'time')} "
            f"they were not followed for a while, {length} in all. How much is in use is right; who holds "
            "it is known of what was allocated since the last of these."
        )
    for one in devices:
        of, totals, peak = f"device {one.number} of process {one.process.pid}", one.totals, one.peak
        if totals is None:
            continue
        if peak is not None and totals.peak_allocated_bytes > peak.live_bytes * _NEARLY:
            yield (
                f"Memory of {of}: its peak of {format_size(totals.peak_allocated_bytes)} was between two "
                f"readings. Its holders are those of the reading with {format_size(peak.live_bytes)} in use."
            )
        if totals.unequal:
            yield (
                f"Memory of {of}: {totals.unequal:,} reports of its allocator did not agree with what "
                "was seen until then: some blocks were missed."
            )


def _row(one: DeviceBlocks, failed: Sequence[Failure], mode: str | None) -> DeviceMemory:
    totals, peak, readings = one.totals or _NOTHING, one.peak, one.readings
    ooms = tuple(map(out_of_memory, failed))
    trends, full_in_s = one.trends, one.full_in_s
    in_use = one.holders(By.IN_USE)
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
        end_holders=holdings(in_use),
        files=files_of(in_use),
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
            GrowingLine(
                function=trend.place.function,
                file=trend.place.file,
                line=trend.place.line,
                bytes_per_s=trend.bytes_per_s,
                r_squared=trend.r_squared,
                readings=trend.readings,
                full_in_s=full_in_s,
            )
            for trend in trends
        ),
    )


class MemoryCalls(NamedTuple):
    """
    The calls that allocate and free.

    ``churn`` has only programs with an incident of such calls.
    """

    allocations: Allocations
    churn: Mapping[ProcessKey, Sequence[Churn]]
    end_unix_ns: int


def layer_rows(
    figures: Iterable[Figures],
    calls: MemoryCalls,
    failures: FailuresOf,
    known: frozenset[tuple[int, int, int]],
) -> Iterator[DeviceMemory]:
    """
    Yield rows of memory taken by runtime and driver calls since the attach.

    Args:
        figures: Counters by process.
        calls: Further data on these calls.
        failures: Failed requests.
        known: Devices of programs with a framework's row, which has the failures.
    """
    for one in figures:
        program = key_of(one.process)
        # The runtime first; only a program that calls the driver directly has no runtime row.
        churn = calls.churn.get(program, ())
        taken = balance_calls(one.series)
        for (device, layer), sums in sorted(taken.items(), key=_runtime_first):
            key = (*program, device)
            failed = () if key in known else failures.get(key, ())
            if layer in _LAYERS:
                name = (program, device, layer)
                row = _layer_row(
                    process=one.process,
                    device=device,
                    layer=_LAYERS[layer],
                    taken=sums,
                    failed=failed,
                )
                row = _over_time(row, name, calls)
                yield with_churn(row, churn)
                churn = ()


def _over_time(row: DeviceMemory, name: AllocationKey, calls: MemoryCalls) -> DeviceMemory:
    readings = calls.allocations.readings_of(name)
    most = max(readings, key=lambda one: one.live_bytes, default=None)
    return row._replace(
        # Read once a second: the real peak can be higher.
        peak_bytes=most.live_bytes if most else None,
        peak_unix_ns=most.unix_ns if most else None,
        readings=tuple(MemoryReading(*one) for one in readings),
        windows=calls.allocations.windows_of(name, calls.end_unix_ns),
    )


def _runtime_first(item: tuple[tuple[int, ApiLayer], CallBalance]) -> tuple[bool, int, str]:
    (device, layer), _ = item
    return layer != ApiLayer.RUNTIME, device, layer


def with_churn(row: DeviceMemory, churn: Iterable[Churn]) -> DeviceMemory:
    """Return a row with alarms and advice on calls that cost time, with figures."""
    ranked = sorted(churn, key=lambda one: (-one.time_ns, one.kind, one.place))[:_MAX_CHURN]
    # A line that only frees past the allocator is not advised: the allocating line has to change.
    helped = [
        one for one in ranked if one.kind != CauseKind.ALLOCATOR_BYPASS or one.calls > one.frees
    ]
    advice = dict.fromkeys([*row.advice, *map(_advice, helped)])
    return row._replace(alarms=(*row.alarms, *map(_alarm, ranked)), advice=tuple(advice))


def _alarm(one: Churn) -> str:
    mean_ns = one.time_ns / one.calls
    taken = f", for {format_size(one.size_bytes)}" if one.size_bytes else ""
    return (
        f"{count_of(one.calls, 'call')} from {describe_place(one.place)} took "
        f"{format_duration(one.time_ns)}, {format_duration(mean_ns)} on average and at most "
        f"{format_duration(one.max_ns)}{taken}: {PHRASES[one.kind].name}."
    )


def _advice(one: Churn) -> str:
    place = describe_place(one.place)
    match one.kind:
        case CauseKind.EMPTY_CACHE:
            return keep_cache(one.frees, place)
        case CauseKind.ALLOCATION_RETRY:
            return (
                f"Leave memory free on the device: {place} found none, and {one.frees:,} cached segments were "
                "released. torch.cuda.set_per_process_memory_fraction() limits each process."
            )
        case _:
            return (
                f"Allocate once what {place} allocates {one.calls - one.frees:,} times past the "
                f"allocator ({format_size(one.size_bytes)} in all), or take it from the allocator."
            )


def _layer_row(
    process: Program, device: int, layer: Layer, taken: CallBalance, failed: Sequence[Failure]
) -> DeviceMemory:
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


def _blank(process: Program, device: int, layer: Layer) -> DeviceMemory:
    return DeviceMemory(
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
