"""Attaches the BPF programs to functions of one library, at entries and returns."""

from otel_gpu import wire
from otel_gpu.capture.bpf.objects import BpfObject
from otel_gpu.capture.bpf.programs import (
    ACKNOWLEDGE_EVENT,
    ASK_DEVICE,
    ENTER_CALL,
    ENTER_EVENT_WAIT,
    EXIT_CALL,
    EXIT_EVENT_WAIT,
    LEARN_DEVICE,
)
from otel_gpu.capture.probes.attacher import AnyLink
from otel_gpu.errors import BpfError
from otel_gpu.wire.probe_symbols import Probe
from otel_gpu.wire.probe_table import ASYNC_EVENT_API, Api

_WAITS, _ACKNOWLEDGED = {wire.FAMILY_ASYNC_EVENT}, {wire.FAMILY_ASYNC_ACK}
_EVENT_FAMILIES = _WAITS | _ACKNOWLEDGED
_ASKS = {wire.FAMILY_GET_DEVICE}
_NO_CALLS = _EVENT_FAMILIES | _ASKS
# (at the return, program, families of functions); no families: all calls.
# Returns first: a call whose entry is seen but not its return would stay open forever.
_PROGRAMS: tuple[tuple[bool, str, set[int]], ...] = (
    (True, EXIT_CALL, set()),
    (False, ENTER_CALL, set()),
    (True, EXIT_EVENT_WAIT, _WAITS),
    (False, ENTER_EVENT_WAIT, _WAITS),
    (False, ACKNOWLEDGE_EVENT, _ACKNOWLEDGED),
    (True, LEARN_DEVICE, _ASKS),
    (False, ASK_DEVICE, _ASKS),
)


def attach_probes(bpf: BpfObject, path: str, probes: list[Probe]) -> list[AnyLink]:
    """
    Probe functions of the file at a path.

    Raises:
        BpfError: One probe failed, so none is placed.
    """
    links: list[AnyLink] = []
    try:
        for on_return, program, families in _PROGRAMS:
            places = [
                (probe.file_offset, _counted_as(probe.api) | probe.variant << 16)
                for probe in probes
                if (probe.api.family in families if families else _is_call(probe.api))
            ]
            links += bpf.attach_uprobes(program, path, places, on_return=on_return)
    except BpfError:
        bpf.detach(links)
        raise
    return links


def _is_call(api: Api) -> bool:
    return api.family not in _NO_CALLS


def _counted_as(api: Api) -> int:
    # Events count as the call that waits for them.
    return ASYNC_EVENT_API if api.family in _EVENT_FAMILIES else api.number
