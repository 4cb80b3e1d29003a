"""The latest readings of the thread times of each program, by entry."""

from collections.abc import Iterator, Sequence

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import Culprit, ProcessKey, Program, key_of
from otel_gpu.enrich.thread_times import ThreadTime, TimeKind, Wait
from otel_gpu.enrich.waits.kernel_waits import KernelWaits
from otel_gpu.enrich.waits.reasons import WaitReason
from otel_gpu.enrich.waits.resource_table import ResourceTable, reason_for
from otel_gpu.limits.caches import CACHES
from otel_gpu.limits.recent import Recent
from otel_gpu.wire.readings import TimesEntry, TimesKey

_ENTRY_BYTES = 500

_MAX_WAITS, _WAIT_BYTES = 2_048, 300

MAX_ENTRIES = 65_536
"""Entries kept, of all programs; further ones are left out."""

_Figures = tuple[int, int, int]


class _Sum:
    # The sum of entries of one kind.

    __slots__ = ("count", "ended_ns", "entries", "is_stop", "kind", "made", "time_ns")

    def __init__(self, kind: TimeKind) -> None:
        self.kind = kind
        self.is_stop = kind[2] in (WaitReason.CAPTURE, WaitReason.STOPPED)
        self.entries = self.time_ns = self.count = self.ended_ns = 0
        self.made: ThreadTime | None = None

    @property
    def figures(self) -> _Figures:
        # time_ns, count and ended_ns.
        return self.time_ns, self.count, self.ended_ns

    def add(self, entry: TimesEntry) -> None:
        self.entries += 1
        self.time_ns += entry.time_ns
        self.count += entry.count
        self.ended_ns += entry.ended_ns

    def remove(self, entry: TimesEntry) -> None:
        # With the values that were added.
        self.entries -= 1
        self.time_ns -= entry.time_ns
        self.count -= entry.count
        self.ended_ns -= entry.ended_ns

    def make(self, process: Program, figures: _Figures) -> ThreadTime:
        # The same object as before, if it is the same.
        made = self.made
        if made is None or made.process is not process or made[4:7] != figures:
            state, context, reason, wait = self.kind
            made = self.made = ThreadTime(process, state, context, reason, *figures, wait)
        return made


class _Account:
    # Each entry with its sum; ``new`` has those that are in none yet.

    __slots__ = ("entries", "new", "sums", "version")

    def __init__(self) -> None:
        self.entries: dict[TimesKey, tuple[TimesEntry, _Sum | None]] = {}
        self.new: dict[TimesKey, None] = {}
        self.sums: dict[TimeKind, _Sum] = {}
        # The versions of stacks and resources when the sums were made.
        self.version = (0, 0)

    def put(self, entry: TimesEntry, known: tuple[TimesEntry, _Sum | None] | None) -> None:
        one = None
        if known is not None:
            before, one = known
            # The stored key is the largest part of an entry.
            entry = entry._replace(key=before.key)
            if one is not None:
                one.remove(before)
                # Its kind has their names.
                one = one if before[4:] == entry[4:] else None
        if one is None:
            self.new[entry.key] = None
        else:
            one.add(entry)
        # Replacing an existing entry keeps the order.
        self.entries[entry.key] = entry, one

    def forget(self, key: TimesKey) -> tuple[TimesEntry, _Sum | None] | None:
        # Takes an entry out of its sum and returns both; None: there is none.
        found = self.entries.pop(key, None)
        if found is not None:
            entry, one = found
            if one is None:
                del self.new[key]
            else:
                one.remove(entry)
        return found


class TimeAccounts:
    """
    Keeps entries as they were read, as the meaning of a kernel stack can come later; bounded.

    Args:
        waits: Reasons of kernel stacks.
        resources: What system calls were about.
    """

    def __init__(self, waits: KernelWaits, resources: ResourceTable) -> None:
        self._waits = waits
        self._resources = resources
        self._accounts: dict[ProcessKey, _Account] = {}
        self._size = 0
        self._known_waits: Recent[Wait, Wait] = Recent(_MAX_WAITS)
        # Accounts refer to most of them: an evicted one would be made again, and then be there twice.
        CACHES.register("waits", self, "_known_waits", entry_bytes=_WAIT_BYTES)
        CACHES.register("time_accounts", self, "_accounts", size_bytes="_size_bytes")

    @property
    def _size_bytes(self) -> int:
        return _ENTRY_BYTES * self._size

    def __contains__(self, program: ProcessKey) -> bool:
        return program in self._accounts

    def take(self, entries: Sequence[TimesEntry]) -> set[ProcessKey]:
        """Add a reading; return the programs with kept entries."""
        programs = set()
        for entry in entries:
            key = entry.key
            program = (key.pid, key.program_ktime_ns)
            account = self._accounts.get(program)
            known = account.entries.get(key) if account else None
            if not (entry.time_ns or entry.count or entry.ended_ns):
                # It is in the entry of a name now, as the process that it names has ended.
                self._size -= bool(account and account.forget(key))
                continue
            if known is None:
                if self._size >= MAX_ENTRIES:
                    continue
                self._size += 1
            if account is None:
                account = self._accounts[program] = _Account()
            account.put(entry, known)
            programs.add(program)
        return programs

    def times(self, process: Program) -> Iterator[ThreadTime]:
        """Yield the sum of the entries of each kind; an unchanged one is the same object."""
        account = self._accounts.get(key_of(process))
        if account is None:
            return
        self._add_up(account)
        sums = [one for one in account.sums.values() if one.entries]
        if len(sums) < len(account.sums):
            account.sums = {one.kind: one for one in sums}
        stops = {one.kind: one.figures for one in sums if one.is_stop}
        _settle_own_stops(stops)
        for one in sums:
            figures = stops.get(one.kind) if one.is_stop else one.figures
            if figures is not None:
                yield one.make(process, figures)

    def forget(self, program: ProcessKey) -> None:
        """Drop the entries of a program."""
        account = self._accounts.pop(program, None)
        self._size -= len(account.entries) if account else 0

    def _add_up(self, account: _Account) -> None:
        version = self._waits.version, self._resources.version
        if account.version != version:
            account.version, account.sums = version, {}
            account.new = dict.fromkeys(account.entries)
        for key in tuple(account.new):
            entry, _ = account.entries[key]
            kind = self._kind(entry)
            one = account.sums.get(kind) or account.sums.setdefault(kind, _Sum(kind))
            one.add(entry)
            # The key exists, so this keeps the order.
            account.entries[key] = entry, one
            del account.new[key]

    def _kind(self, entry: TimesEntry) -> TimeKind:
        key = entry.key
        reason = end_reason = WaitReason.NONE
        resource = self._resources.find(key.resource)
        if key.state == wire.STATE_BLOCKED:
            reason = self._waits.reason(key.kernel_stack, key.system_call, key.flags)
            reason = reason_for(reason, resource)
        elif key.state == wire.STATE_RUN_QUEUE and key.flags & wire.STALL_PREEMPTED:
            reason = WaitReason.PREEMPTED
        if key.end_state == wire.STATE_BLOCKED:
            end_reason = self._waits.reason(
                key.end_kernel_stack, key.end_system_call, key.end_flags
            )
        who = Culprit(key.who_pid, key.who_tid, entry.who_comm) if key.who_pid else None
        end = Culprit(key.end_pid, key.end_tid, entry.end_comm) if key.end_pid else None
        wait = Wait(
            api=key.api,
            who=who,
            end=end,
            end_state=key.end_state,
            end_reason=end_reason,
            resource=resource,
        )
        if key.is_folded == wire.FOLDED_BY_NAME:
            wait = wait.by_name()
        # Readers that keep a reading keep these, too, and a reading has all of a process.
        wait = self._known_waits.setdefault(wait, wait)
        return key.state, key.context, reason, wait


def _settle_own_stops(totals: dict[TimeKind, _Figures]) -> None:
    # Moves the time of a stop by the agent from before its end to where it ended: only the end of a
    # stop shows what made it.
    # Not in the order of reading, which would decide between several of them.
    kinds = sorted(totals, key=repr)
    for own in [kind for kind in kinds if kind[2] == WaitReason.CAPTURE]:
        for kind in [one for one in kinds if one[1] == own[1] and one[2] == WaitReason.STOPPED]:
            if kind not in totals:
                continue
            time_ns, count, ended_ns = totals[own]
            other_ns, others, other_ended_ns = totals[kind]
            moved_ns = max(0, min(ended_ns - time_ns, other_ns - other_ended_ns))
            totals[own] = (time_ns + moved_ns, count, ended_ns)
            totals[kind] = (other_ns - moved_ns, others, other_ended_ns)
            if not any(totals[kind]):
                del totals[kind]
