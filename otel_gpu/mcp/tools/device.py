"""``get_device_time``: the time of devices, why they were idle, and what to do."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import Field

from otel_gpu.errors import OtelGpuError
from otel_gpu.mcp.answers import Listing, first_of, micros, name_of, present, sanitize
from otel_gpu.mcp.arguments import rows
from otel_gpu.mcp.captures import ServedDocument
from otel_gpu.mcp.tool import Answer, fields_of, share, since, table, tool
from otel_gpu.report.devices.types import DeviceReport, StepTimePart
from otel_gpu.report.document import Document
from otel_gpu.report.wording.formats import short_function
from otel_gpu.report.wording.shares import largest_first
from otel_gpu.report.wording.short_names import short_names

_Name = TypeVar("_Name", bound=str)
_MAX_ID = 20
# Only their lists can be cut, so few of them are written.
_MAX_DEVICES, _MAX_ADVICE, _MAX_GATES = 3, 12, 20
_ALL = (
    "id source rank device model verdict window_us compute_us exposed_communication_us "
    "exposed_copy_us idle_us steps step_median_us"
)
_SHARES = (
    "useful utilization occupancy processors tensor_core_share tensor_core_unknown_share overlap"
)
_STEP = (
    "id name at_us duration_us compute_us exposed_communication_us exposed_copy_us idle_us "
    "data_loader_us set_aside"
)
# Traced names that are also known words: operators of PyTorch, and calls of CUDA.
_OURS = re.compile(r"(?:aten::|cuda|cu[A-Z]|hip)\w{1,60}")
_NOTHING = (
    "This capture has no device time: it saw the host's side. Serve a trace of "
    "torch.profiler or an export of Nsight Systems, or a store with an imported one."
)


@tool("Device time")
def get_device_time(
    served: ServedDocument,
    device: Annotated[
        str, Field(max_length=_MAX_ID, description="Only the device with this id, in full.")
    ] = "",
    limit: Annotated[int, rows(100, "rows in each list")] = 10,
) -> Answer:
    """
    What devices did, from a trace of torch.profiler or Nsight Systems: device time, which a capture
    of CUDA calls does not have. devices: each with the parts of its window (compute + exposed
    communication + exposed copies + idle), and the verdict. in_full, of the first ones or of
    device: idle_us by cause (data_loader, sync, allocator, host_op, python, launch_latency, ...),
    waits (what the thread did while the device waited for it), gaps (the longest), lost_us by
    reason, steps, kinds of kernels, kernels, operations (own time), copies, launches, collectives;
    cannot_say: problems of the trace, and which figures are null because of them. to_do: advice
    with the share of the window that it can save at most, the ids of its evidence, and how to check
    it; "that one" stands for a name of the program, which the rows of those ids have. Times of
    kernels add up to more than the window where streams overlap. null: not known.
    """
    document = served.document
    found = [row for row in document.devices if device in ("", row.id)]
    if device and not found:
        raise OtelGpuError(
            f"there is no device {sanitize(device, _MAX_ID)}", hint="the list devices has the ids"
        )
    shown = found[:_MAX_DEVICES]
    advice = [one for one in document.advice if not device or _is_of(one.evidence, device)]
    names = list(_names(found))
    to_do = [
        {
            "what": _without(one.text, names),
            "gain_at_most": None if one.gain_at_most is None else share(one.gain_at_most),
            "evidence": list(one.evidence),
            "check": one.check,
        }
        for one in advice
    ]
    return {
        "devices": table(found, _ALL),
        "to_do": first_of(to_do, _MAX_ADVICE),
        "in_full": [_device(row, document, limit) for row in shown],
        **present(more_in_full=len(found) - len(shown)),
        "note": "" if found else _NOTHING,
    }


def _device(row: DeviceReport, document: Document, limit: int) -> dict[str, object]:
    return {
        "id": row.id,
        "cannot_say": first_of(list(map(sanitize, row.gate)), _MAX_GATES),
        **{name: _share(getattr(row, name)) for name in _SHARES.split()},
        "lost_us": _times(row.lost),
        "idle_us": _times(row.idle),
        "waits": table(row.waits, "cause name python time_us", limit),
        "gaps": table(
            row.gaps,
            "id at_us duration_us cause name python",
            limit,
            at_us=lambda gap: since(gap.start_unix_ns, document),
        ),
        "steps": table(
            row.step_rows,
            _STEP,
            limit,
            at_us=lambda step: since(step.start_unix_ns, document),
            data_loader_us=lambda step: micros(step.parts.get(StepTimePart.DATA_LOADER, 0)),
        ),
        "kinds": table(row.kinds, "kind times time_us", limit),
        "kernels": _named(row.kernels, "id name kind times time_us longest_us", limit),
        "operations": table(row.operations, "id name shapes times host_us device_us", limit),
        "copies": table(row.copies, "way pageable times time_us bytes", limit),
        "launches": fields_of(
            row.launches, "linked graphs median_delay_us early shorter most_queued full_queue_us"
        ),
        "collectives": row.collectives and fields_of(row.collectives, "matched waited_us last"),
    }


def _named(found: Sequence[Any], fields: str, limit: int) -> Listing:
    names = short_names(one.name for one in found)
    return table(found, fields, limit, name=lambda one: name_of(names[one.name]))


def _times(times_ns: Mapping[_Name, int] | None) -> dict[str, object] | None:
    if times_ns is None:
        return None
    return {name: micros(time_ns) for name, time_ns in largest_first(times_ns)}


def _share(value: float | None) -> float | None:
    return None if value is None else share(value)


def _is_of(evidence: Iterable[str], device: str) -> bool:
    return any(one == device or one.startswith(f"{device}/") for one in evidence)


def _names(found: Iterable[DeviceReport]) -> Iterable[str]:
    for row in found:
        yield row.source
        for wait in row.waits:
            yield from (wait.name, wait.python)
        for gap in row.gaps:
            yield from (gap.name, gap.python)
        for kernel in row.kernels:
            yield from (kernel.name, short_function(kernel.name))
        for operation in row.operations:
            yield from (operation.name, operation.shapes)


def _without(text: str, names: Iterable[str]) -> str:
    # A traced name is never part of a sentence here.
    for name in sorted({*names}, key=lambda one: (-len(one), one)):
        if name and not _OURS.fullmatch(name):
            text = text.replace(name, "that one")
    return text
