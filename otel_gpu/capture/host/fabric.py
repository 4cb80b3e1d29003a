"""
Counters of the host's RDMA network adapters, from /sys/class/infiniband.

Nothing is written there. Adapters can appear and disappear during a read.
"""

# Reads can block
# ---------------
#
# The driver asks the adapter's firmware for each counter, and waits up to a minute for one that
# hangs. So a separate thread reads, as for GPUs (nvml.py).
#
# Error counters stand still on a healthy network; traffic counters always rise. A reading is reported
# when an error counter or the state of a port changed, together with the reading before it, which
# shows since when; otherwise every ten seconds.

import errno
import os
import re
import stat
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

from otel_gpu.capture.host.polling_thread import PollingThread
from otel_gpu.wire.fabric_bodies import MAX_PORTS, MAX_TEXT, MAX_VALUE, FabricReading, PortReading
from otel_gpu.wire.port_counters import COUNTERS, TRAFFIC, Meaning

ROOT: Final = "/sys/class/infiniband"
QUIET_INTERVAL_S: Final = 10.0
"""Interval of reports while only traffic changes."""

# Between searches for adapters on a host without one.
_SEARCH_INTERVAL_S = 10.0

_MAX_UNTAKEN = 8
_MAX_FILE_BYTES = 4096
_MAX_ENTRIES = 4096
_BITS_PER_GIGABIT = 10**9
# A name from a driver or an administrator.
_ADAPTER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,63}\Z")
_PORT = re.compile(r"[0-9]{1,3}\Z")
_NUMBER = re.compile(rb"[0-9]{1,20}\Z")
_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec")
# Errors of counters that an adapter does not support.
_UNSUPPORTED = frozenset({"ENOENT", "EINVAL", "EOPNOTSUPP", "ENODEV", "ENOTDIR", "ENODATA"})
_ADAPTER_FACTS = {
    "guid": "node_guid",
    "firmware": "fw_ver",
    "model": "hca_type",
    "vendor": "device/vendor",
}
_PORT_FACTS = {
    "state": "state",
    "physical_state": "phys_state",
    "link_layer": "link_layer",
    "interface": "gid_attrs/ndevs/0",
}
_STATES = frozenset({"state", "physical_state"})


class PortsReading(NamedTuple):
    """All ports at one time, as the body of RECORD_FABRIC."""

    ktime_ns: int
    info: FabricReading


class FabricReader(PollingThread):
    """
    Reads all ports periodically.

    Args:
        interval_s: The period.
        root: The folder of the adapters.
        clock: A monotonic clock in seconds.
    """

    def __init__(
        self,
        interval_s: float,
        root: str = ROOT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("otel-gpu-fabric", clock)
        self._interval_s = interval_s
        self._ports = Ports(root)
        self._due: deque[PortsReading] = deque(maxlen=_MAX_UNTAKEN)
        self._last: PortsReading | None = None
        self._is_last_due = True
        self._passed_on_s = 0.0

    def take(self) -> list[PortsReading]:
        """Return the readings to report since the previous call, also if a reading is late."""
        with self._lock:
            due = list(self._due)
            self._due.clear()
        has_changed, lateness = self._lateness()
        if has_changed:
            due.append(PortsReading(round(self._clock() * 1e9), {}))
        return [
            PortsReading(ktime_ns, cast("FabricReading", {**lateness, **info}))
            for ktime_ns, info in due
        ]

    def _turn(self) -> float:
        with self._asking():
            info = self._ports.read()
        with self._lock:
            self._note(PortsReading(round(self._clock() * 1e9), info))
        # Few hosts have adapters, and new ones are rare.
        return self._interval_s if self._last else max(self._interval_s, _SEARCH_INTERVAL_S)

    def _note(self, reading: PortsReading) -> None:
        if self._last is None and not (reading.info["ports"] or reading.info["failed"]):
            # No adapter yet: nothing to report.
            return
        has_changed = self._last is None or _has_changed(self._last.info, reading.info)
        is_time = self._clock() - self._passed_on_s >= QUIET_INTERVAL_S
        if has_changed and self._last is not None and not self._is_last_due:
            self._due.append(self._last)
        if has_changed or is_time:
            self._due.append(reading)
            self._passed_on_s = self._clock()
        self._last, self._is_last_due = reading, has_changed or is_time


class Ports:
    """Reads the ports of all adapters; counts failed reads by the name of the error."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._failed: Counter[str] = Counter()

    def read(self) -> FabricReading:
        """Return the body of RECORD_FABRIC."""
        ports: list[PortReading] = []
        left_out = 0
        for adapter in self._list(self._root, _ADAPTER):
            facts = self._facts(f"{self._root}/{adapter}", _ADAPTER_FACTS)
            for port in self._list(f"{self._root}/{adapter}/ports", _PORT):
                if len(ports) >= MAX_PORTS:
                    left_out += 1
                    continue
                found = self._read_port(f"{self._root}/{adapter}/ports/{port}")
                whole = {"adapter": adapter, "port": int(port), **facts, **found}
                ports.append(cast("PortReading", whole))
        return {"ports": ports, "left_out": left_out, "failed": dict(self._failed)}

    def _read_port(self, folder: str) -> dict[str, object]:
        found: dict[str, Any] = self._facts(folder, _PORT_FACTS)
        for name in _STATES & found.keys():
            # Such as "4: ACTIVE".
            found[name] = found[name].rpartition(":")[2].strip().lower()
        if rate := _RATE.match(self._read_text(f"{folder}/rate")):
            found["rate_bps"] = round(float(rate[1]) * _BITS_PER_GIGABIT)
        found["counters"] = dict(self._counters(folder))
        return found

    def _counters(self, folder: str) -> Iterator[tuple[str, int]]:
        known: set[Meaning] = set()
        names = {
            name: f"{folder}/{group}/{name}"
            for group in ("hw_counters", "counters")
            for name in self._list(f"{folder}/{group}")
            if name in COUNTERS
        }
        for name, (meaning, factor) in COUNTERS.items():
            if name not in names or (meaning in TRAFFIC and meaning in known):
                continue
            text = self._read(names[name]).strip()
            if not text:
                continue
            value = int(text) * factor if _NUMBER.match(text) else MAX_VALUE + 1
            if value > MAX_VALUE:
                self._failed["not_a_count"] += 1
                continue
            known.add(meaning)
            yield name, value

    def _facts(self, folder: str, files: Mapping[str, str]) -> dict[str, str]:
        texts = {name: self._read_text(f"{folder}/{file}") for name, file in files.items()}
        return {name: text for name, text in texts.items() if text}

    def _read_text(self, path: str) -> str:
        text = self._read(path).decode("utf-8", "replace").strip()
        return "".join(character for character in text if character.isprintable())[:MAX_TEXT]

    def _read(self, path: str) -> bytes:
        try:
            # Does not block on a pipe in place of a file.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    self._failed["not_a_file"] += 1
                    return b""
                return os.read(descriptor, _MAX_FILE_BYTES)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._count(error)
            return b""

    def _list(self, folder: str, form: re.Pattern[str] | None = None) -> list[str]:
        # The names in a folder that match, sorted by length and name.
        found = []
        try:
            with os.scandir(folder) as entries:
                for number, entry in enumerate(entries):
                    if number >= _MAX_ENTRIES:
                        self._failed["too_many_entries"] += 1
                        break
                    if form is None or form.match(entry.name):
                        found.append(entry.name)
                    else:
                        self._failed["not_a_name"] += 1
        except OSError as error:
            self._count(error)
        return sorted(found, key=lambda name: (len(name), name))

    def _count(self, error: OSError) -> None:
        name = errno.errorcode.get(error.errno or 0, "OSError")
        if name not in _UNSUPPORTED:
            self._failed[name] += 1


def _has_changed(before: FabricReading, now: FabricReading) -> bool:
    then, since = (list(map(_without_traffic, info["ports"])) for info in (before, now))
    return then != since


def _without_traffic(port: PortReading) -> PortReading:
    counters = {
        name: value
        for name, value in port["counters"].items()
        if COUNTERS[name].meaning not in TRAFFIC
    }
    return {**port, "counters": counters}
