"""
Finds the current device of threads that existed before the capture, by probing their queries for it.

Frameworks query the device ten times per launch, and each would hit a probe. So the probes stay only for
some seconds.
"""

import logging
import time
from collections.abc import Iterable

from otel_gpu.capture.bpf.objects import BpfObject
from otel_gpu.capture.probes.attacher import AnyLink
from otel_gpu.capture.probes.call_probes import attach_probes
from otel_gpu.errors import BpfError
from otel_gpu.procfs.mapped_files import MappedFile
from otel_gpu.procfs.proc_files import stream_of
from otel_gpu.procfs.process_log import PROCESS_LOG
from otel_gpu.wire.probe_symbols import Probe, api_of_symbol

SEEN_FOR_S = 2.0

_logger = logging.getLogger(__name__)


class DeviceQueries:
    """
    The probes at the functions of one library that return the current device.

    Args:
        bpf: The loaded object.
        probes: From ``asks_of``.
    """

    def __init__(self, bpf: BpfObject, probes: list[Probe]) -> None:
        self._bpf = bpf
        self._probes = probes
        self._links: list[AnyLink] = []
        self._seen_since_s = 0.0

    def see(self, mapped: MappedFile) -> None:
        """Place the probes, for some seconds from now on."""
        self._seen_since_s = time.monotonic()
        if self._links or not self._probes:
            return
        try:
            with stream_of(mapped.open()) as stream:
                path = f"/proc/self/fd/{stream.fileno()}"
                self._links = attach_probes(self._bpf, path, self._probes)
        except (OSError, BpfError) as error:
            text = "%s of process %d: %s"
            PROCESS_LOG.warning(_logger, mapped.pid, text, mapped.path, mapped.pid, error)

    def expire(self, now_s: float) -> None:
        """Remove the probes if they have been there for ``SEEN_FOR_S``."""
        if self._links and now_s - self._seen_since_s >= SEEN_FOR_S:
            self.ignore()

    def ignore(self) -> None:
        """Remove the probes."""
        self._bpf.detach(self._links)
        self._links = []


def asks_of(functions: Iterable[tuple[str, int]]) -> list[Probe]:
    """Return the functions that return the current device, from (name, file offset) pairs."""
    found = ((symbol, file_offset, api_of_symbol(symbol)) for symbol, file_offset in functions)
    return [
        Probe(symbol, file_offset, *api)
        for symbol, file_offset, api in found
        if api and api[0].tells_device
    ]
