"""
Merges time-accounting entries about processes that ended into one entry per process name.

The time accounting of a program has an entry for each thread that kept it waiting. Beside a program
that runs for days, thousands of short ones leave entries that never change again. They would fill the
kernel's map, and the agent holds each of them several times.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from otel_gpu import wire
from otel_gpu.stacks.samples import ProcessKey
from otel_gpu.wire.agent_records import Entry

# A program with fewer entries keeps them all, with pids.
_ENOUGH = 256
_FIELDS = wire.TIMES_KEY.fields
_PID, _PROCESS_KEY, _IS_FOLDED = (
    _FIELDS.index(name) for name in ("pid", "program_ktime_ns", "is_folded")
)
_WHO, _WHO_TID, _END, _END_TID = (
    _FIELDS.index(name) for name in ("who_pid", "who_tid", "end_pid", "end_tid")
)
_NOTHING = bytes(wire.TIMES.size)


class EndedWaits:
    """
    Merges entries about processes that ended.

    Args:
        drop: Deletes an entry, which does not change any more.
        lives: Returns whether a pid exists.
    """

    def __init__(
        self, drop: Callable[[bytes], object], lives: Callable[[int], bool] | None = None
    ) -> None:
        self._drop = drop
        self._lives = lives or (lambda pid: Path(f"/proc/{pid}").exists())
        self._sums: dict[ProcessKey, dict[bytes, tuple[int, int, int]]] = {}
        # Values at the previous call. Entries that changed since then are not merged.
        self._before: dict[bytes, bytes] = {}

    def fold(
        self, latest: Mapping[bytes, bytes], excepted: Iterable[ProcessKey] = ()
    ) -> list[Entry]:
        """Return the changed entries: merged ones with zeros, and the sums."""
        by_program: dict[ProcessKey, list[bytes]] = {}
        for key in latest:
            fields = wire.TIMES_KEY.unpack(key)
            by_program.setdefault((fields[_PID], fields[_PROCESS_KEY]), []).append(key)
        for program in self._sums.keys() - by_program.keys():
            del self._sums[program]
        before, self._before = self._before, {}
        known: dict[int, bool] = {0: False}
        changed: dict[bytes, bytes] = {}
        for program, keys in by_program.items():
            if len(keys) <= _ENOUGH or program in excepted:
                continue
            for key in keys:
                if before.get(key) == latest[key] and self._is_over(key, known):
                    self._add(program, key, value=latest[key], changed=changed)
                else:
                    self._before[key] = latest[key]
        return list(changed.items())

    def _is_over(self, key: bytes, known: dict[int, bool]) -> bool:
        fields = wire.TIMES_KEY.unpack(key)
        pids = {fields[_WHO], fields[_END]}
        for pid in pids - known.keys():
            known[pid] = self._lives(pid)
        return pids != {0} and not any(known[pid] for pid in pids)

    def _add(
        self, program: ProcessKey, key: bytes, value: bytes, changed: dict[bytes, bytes]
    ) -> None:
        time_ns, count, ended_ns, who, end = wire.TIMES.unpack(value)
        fields = list(wire.TIMES_KEY.unpack(key))
        for pid, tid, name in ((_WHO, _WHO_TID, who), (_END, _END_TID, end)):
            fields[pid], fields[tid] = _number(name) if fields[pid] else 0, 0
        fields[_IS_FOLDED] = wire.FOLDED_BY_NAME
        folded = wire.TIMES_KEY.pack(*fields)
        sums = self._sums.setdefault(program, {})
        known = sums.get(folded, (0, 0, 0))
        sums[folded] = (known[0] + time_ns, known[1] + count, known[2] + ended_ns)
        changed[key] = _NOTHING
        changed[folded] = wire.TIMES.pack(*sums[folded], who, end)
        self._drop(key)


def _number(name: bytes) -> int:
    # Distinguishes names, in place of a pid.
    return zlib.crc32(name.rstrip(b"\0")) | 1
