"""
Shares of the BPF maps per program and user: see ``bpf/core/shares.bpf.h``, ``otel_gpu/limits/shares.py``.

The kernel side charges the entries that it adds and removes. Entries that the agent adds and removes
are charged as corrections, which only the agent writes. A periodic recount fixes the corrections.
"""

import contextlib
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from otel_gpu import wire
from otel_gpu.capture.bpf.objects import BpfObject
from otel_gpu.capture.probes.refusals import Refusals
from otel_gpu.config import Config
from otel_gpu.errors import MapFullError
from otel_gpu.limits.shares import EntryOwner, ShareBound
from otel_gpu.stacks.samples import ProcessKey

ENDS_WITH_PROGRAMS: Final = (wire.SHARE_SERIES, wire.SHARE_TIMES, wire.SHARE_FOLDED_TIMES)
"""Shares of maps whose entries are freed at once when their program ends."""

BOUNDS: Final[Mapping[int, ShareBound]] = {
    wire.SHARE_SERIES: ShareBound.SERIES,
    wire.SHARE_TIMES: ShareBound.TIMES,
    wire.SHARE_FOLDED_TIMES: ShareBound.FOLDED_TIMES,
    wire.SHARE_PROCESSES: ShareBound.PROCESSES,
    wire.SHARE_THREADS: ShareBound.THREADS,
    wire.SHARE_STACKS: ShareBound.KERNEL_STACKS,
    wire.SHARE_LIFECYCLE: ShareBound.LIFECYCLE_RING,
    wire.SHARE_EVENTS: ShareBound.RING,
    wire.SHARE_SPANS: ShareBound.SPANS,
    wire.SHARE_BLOCK_STACKS: ShareBound.BLOCK_STACKS,
}
COUNTERS_OF_REFUSALS: Final = (
    wire.COUNTER_LOST_SERIES_FULL,
    wire.COUNTER_TIMES_FOLDED,
    wire.COUNTER_LOST_TIMES_FULL,
    wire.COUNTER_LOST_PROCESSES_FULL,
    wire.COUNTER_LOST_THREADS_FULL,
    wire.COUNTER_LOST_STACK,
    wire.COUNTER_LOST_RING_FULL,
    wire.COUNTER_LOST_LIFECYCLE_RING_FULL,
    wire.COUNTER_SPANS_RATE_LIMITED,
    wire.COUNTER_BLOCK_STACKS_RATE_LIMITED,
)
"""Counters that grow with every refusal."""

TIMES_PER_FOLDED: Final = 8
LIFECYCLE_BYTES: Final = 1 << 20
_MAX_STACKS = 4096
_UID = struct.Struct("<I")
_NOTHING: Final = (0,) * wire.SHARE_COUNT
_COMM: Final = wire.ENDED_SHARES.fields.index("comm")
_ENDED_UID: Final = wire.ENDED_SHARES.fields.index("uid")
_PROCESS_UID: Final = wire.PROCESS.fields.index("uid")
_PROCESS_HELD: Final = wire.PROCESS.fields.index("shares.held_0")


def share_bounds(config: Config) -> tuple[int, ...]:
    """Return the most entries of all programs together, by ``enum share_kind``."""
    capture = config.capture
    bounds = {
        wire.SHARE_SERIES: capture.max_series,
        wire.SHARE_TIMES: capture.max_times,
        wire.SHARE_FOLDED_TIMES: capture.max_times // TIMES_PER_FOLDED,
        wire.SHARE_PROCESSES: capture.max_processes,
        wire.SHARE_THREADS: capture.max_threads,
        wire.SHARE_STACKS: _MAX_STACKS,
        wire.SHARE_LIFECYCLE: LIFECYCLE_BYTES,
        wire.SHARE_EVENTS: capture.ring_buffer_bytes,
        wire.SHARE_SPANS: wire.USER_SPANS * config.spans.rate_per_process,
        wire.SHARE_BLOCK_STACKS: config.memory.stacks_per_second,
    }
    return tuple(bounds[kind] for kind in range(wire.SHARE_COUNT))


class KernelShares:
    """
    Entries that each program and each user holds in the maps.

    Args:
        bpf: The loaded object.
        bounds: Most entries of all programs, by ``enum share_kind``.
        refusals: Gets refusals to the agent, and those to programs that ended.
    """

    def __init__(self, bpf: BpfObject, bounds: tuple[int, ...], refusals: Refusals) -> None:
        self._processes = bpf.map("processes")
        self._users = bpf.map("user_shares")
        self._corrections = bpf.map("user_corrections")
        self._ended = bpf.map("ended_shares")
        self._bounds = bounds
        self._refusals = refusals
        # By user.
        self._corrected: dict[int, list[int]] = {}

    def take(self, kind: int, holder: EntryOwner, entries: int = 1) -> int:
        """
        Charge a user for entries that the agent wants to add.

        Returns:
            How many of them are allowed; the rest is counted as refused.
        """
        free = self._bounds[kind] - self._held(wire.ALL_USERS, kind)
        # After each entry, USER_SHARE * free entries must still be at least what the user holds.
        most = wire.USER_SHARE * free - self._held(holder.uid, kind) + wire.USER_SHARE
        taken = max(min(entries, most // (wire.USER_SHARE + 1)), 0)
        self._correct(holder.uid, kind, taken)
        if taken < entries:
            self._refusals.add(BOUNDS[kind], holder, entries - taken)
        return taken

    def release(self, kind: int, uid: int, entries: int = 1) -> None:
        """Uncharge entries of a user."""
        self._correct(uid, kind, -entries)

    def end(self, programs: Iterable[ProcessKey]) -> None:
        """Uncharge the entries of programs that ended, which the caller frees."""
        for pid, program_ktime_ns in programs:
            key = wire.PROGRAM_KEY.pack(program_ktime_ns, pid)
            if raw := self._ended.lookup(key):
                self._end(key, raw)

    def recount(self, living: Collection[ProcessKey], threads: Iterable[int]) -> None:
        """
        Set each user's charge to what its living programs hold.

        Args:
            living: The programs that have entries.
            threads: The pid of each followed thread.
        """
        held: dict[int, list[int]] = {}
        users: dict[int, int] = {}
        for pid, uid, of_program in self._read_processes():
            users[pid] = uid
            own = held.setdefault(uid, [0] * wire.SHARE_COUNT)
            own[wire.SHARE_PROCESSES] += 1
            for kind in ENDS_WITH_PROGRAMS:
                own[kind] += of_program[kind]
        for pid in threads:
            if pid in users:
                held[users[pid]][wire.SHARE_THREADS] += 1
        for key, raw in list(self._ended.entries()):
            program_ktime_ns, pid = wire.PROGRAM_KEY.unpack(key)
            if (pid, program_ktime_ns) not in living:
                self._end(key, raw)
        counted = {
            **held,
            wire.ALL_USERS: [sum(kinds) for kinds in zip(*held.values(), strict=True)],
        }
        for raw_uid, raw in list(self._users.entries()):
            (uid,) = _UID.unpack(raw_uid)
            shares = wire.SHARES.unpack(raw)
            corrected = self._corrected.get(uid, list(_NOTHING))
            self._set(
                uid,
                [
                    # Kernel stacks belong to no program, so they cannot be recounted.
                    corrected[kind] if kind == wire.SHARE_STACKS else now - shares[kind]
                    for kind, now in enumerate(counted.get(uid) or _NOTHING)
                ],
            )

    def refused(self) -> Iterator[tuple[ShareBound, EntryOwner, int, str]]:
        """Yield refusals to living programs: (bound, holder, count, empty process name)."""
        for key, raw in self._processes.entries():
            fields = wire.PROCESS.unpack(raw)
            holder = EntryOwner(int.from_bytes(key, "little"), fields[_PROCESS_UID])
            yield from _refusals_of(holder, fields[_PROCESS_HELD + wire.SHARE_COUNT :])
        for key, raw in self._users.entries():
            holder = EntryOwner(0, int.from_bytes(key, "little"))
            yield from _refusals_of(holder, wire.SHARES.unpack(raw)[wire.SHARE_COUNT :])

    def _read_processes(self) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        for key, raw in self._processes.entries():
            fields = wire.PROCESS.unpack(raw)
            held = fields[_PROCESS_HELD : _PROCESS_HELD + wire.SHARE_COUNT]
            yield int.from_bytes(key, "little"), fields[_PROCESS_UID], held

    def _end(self, key: bytes, raw: bytes) -> None:
        self._ended.delete(key)
        fields = wire.ENDED_SHARES.unpack(raw)
        uid, name = fields[_ENDED_UID], fields[_COMM].split(b"\0")[0].decode(errors="replace")
        _, pid = wire.PROGRAM_KEY.unpack(key)
        for bound, holder, count, _ in _refusals_of(
            EntryOwner(pid, uid), fields[wire.SHARE_COUNT :]
        ):
            self._refusals.add(bound, holder, count, name=name)
        for kind in ENDS_WITH_PROGRAMS:
            self._correct(uid, kind, -fields[kind])

    def _held(self, uid: int, kind: int) -> int:
        raw = self._users.lookup(_UID.pack(uid))
        held: int = wire.SHARES.unpack(raw)[kind] if raw else 0
        return held + self._corrected.get(uid, _NOTHING)[kind]

    def _correct(self, uid: int, kind: int, entries: int) -> None:
        for user in (uid, wire.ALL_USERS) if entries else ():
            corrections = list(self._corrected.get(user, _NOTHING))
            corrections[kind] += entries
            self._set(user, corrections)

    def _set(self, uid: int, corrections: list[int]) -> None:
        if self._corrected.get(uid) != corrections:
            self._corrected[uid] = corrections
            with contextlib.suppress(MapFullError):
                self._corrections.update(_UID.pack(uid), wire.SHARE_CORRECTIONS.pack(*corrections))


def _refusals_of(
    holder: EntryOwner, refused: Iterable[int]
) -> Iterator[tuple[ShareBound, EntryOwner, int, str]]:
    for kind, count in zip(range(wire.SHARE_COUNT), refused, strict=False):
        if count:
            yield BOUNDS[kind], holder, count, ""
