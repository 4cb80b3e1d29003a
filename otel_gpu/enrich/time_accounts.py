"""What the time account of each process image was when it was last read, entry by entry."""

from collections.abc import Iterator, Sequence

from otel_gpu import wire
from otel_gpu.caches import CACHES
from otel_gpu.decode.readings import TimesEntry, TimesKey
from otel_gpu.enrich.identities import Culprit, ImageKey, ProcessImage, key_of
from otel_gpu.enrich.kernel_waits import KernelWaits
from otel_gpu.enrich.reasons import CAPTURE, STOPPED
from otel_gpu.enrich.resource_table import ResourceTable, reason_for
from otel_gpu.enrich.thread_times import PREEMPTED, ThreadTime, TimeKind, Wait
from otel_gpu.recent import Recent

_ENTRY_BYTES = 500

_MAX_WAITS = 2_048

MAX_ENTRIES = 65_536
"""Entries that are kept, of all images; further ones are left out."""


class TimeAccounts:
    """
    Keeps entries as they were read, as what a kernel stack means may be learnt after them; bounded.

    Args:
        waits: Says why a thread waits in a kernel stack.
        resources: Says what its system call was about.
    """

    def __init__(self, waits: KernelWaits, resources: ResourceTable) -> None:
        self._waits = waits
        self._resources = resources
        self._entries: dict[ImageKey, dict[TimesKey, TimesEntry]] = {}
        self._size = 0
        self._known_waits: Recent[Wait, Wait] = Recent(_MAX_WAITS)
        CACHES.register_recent("waits", self._known_waits)
        CACHES.register("time_accounts", self, "_entries", size_bytes="_size_bytes")

    @property
    def _size_bytes(self) -> int:
        return _ENTRY_BYTES * self._size

    def __contains__(self, image: ImageKey) -> bool:
        return image in self._entries

    def take(self, entries: Sequence[TimesEntry]) -> set[ImageKey]:
        """Take in a reading; the images of which something was kept."""
        images = set()
        for entry in entries:
            key = entry.key
            image = (key.pid, key.image_ktime_ns)
            known = self._entries.get(image, {})
            if not (entry.time_ns or entry.count or entry.ended_ns):
                # It is in that of a name now, as who it is about has ended.
                self._size -= known.pop(key, None) is not None
                continue
            before = known.get(key)
            if before is not None:
                # The key that is kept for it is the largest part of an entry.
                entry = entry._replace(key=before.key)  # noqa: PLW2901
            else:
                if self._size >= MAX_ENTRIES:
                    continue
                self._size += 1
                known = self._entries.setdefault(image, {})
            known[entry.key] = entry
            images.add(image)
        return images

    def times(self, process: ProcessImage) -> Iterator[ThreadTime]:
        """Yield what the entries of each kind are together."""
        totals: dict[TimeKind, tuple[int, int, int]] = {}
        for entry in self._entries.get(key_of(process), {}).values():
            kind = self._kind(entry)
            time_ns, count, ended_ns = totals.get(kind, (0, 0, 0))
            totals[kind] = (
                time_ns + entry.time_ns,
                count + entry.count,
                ended_ns + entry.ended_ns,
            )
        _settle_own_stops(totals)
        for (state, context, reason, wait), sums in totals.items():
            yield ThreadTime(process, state, context, reason, *sums, wait)

    def forget(self, image: ImageKey) -> None:
        """Keep nothing more of an image."""
        self._size -= len(self._entries.pop(image, ()))

    def _kind(self, entry: TimesEntry) -> TimeKind:
        key = entry.key
        reason = end_reason = ""
        resource = self._resources.find(key.resource)
        if key.state == wire.STATE_BLOCKED:
            reason = self._waits.reason(key.kernel_stack, key.system_call, key.flags)
            reason = reason_for(reason, resource)
        elif key.state == wire.STATE_RUN_QUEUE and key.flags & wire.STALL_PREEMPTED:
            reason = PREEMPTED
        if key.end_state == wire.STATE_BLOCKED:
            end_reason = self._waits.reason(
                key.end_kernel_stack, key.end_system_call, key.end_flags
            )
        who = Culprit(key.who_pid, key.who_tid, entry.who_comm) if key.who_pid else None
        end = Culprit(key.end_pid, key.end_tid, entry.end_comm) if key.end_pid else None
        wait = Wait(key.api, who, end, key.end_state, end_reason, resource)
        if key.is_folded == wire.FOLDED_BY_NAME:
            wait = wait.by_name()
        # Whoever keeps a reading keeps these, too, and a reading has all of a process.
        wait = self._known_waits.setdefault(wait, wait)
        return key.state, key.context, reason, wait


def _settle_own_stops(totals: dict[TimeKind, tuple[int, int, int]]) -> None:
    """
    Move what was read of a stop of ours before it ended to where it ended.

    Who ends a stop, and so who made it, is known at its end; until then it is as any other.
    """
    ours = [kind for kind in totals if kind[2] == CAPTURE]
    for own in ours:
        for kind in [one for one in totals if one[1] == own[1] and one[2] == STOPPED]:
            time_ns, count, ended_ns = totals[own]
            other_ns, others, other_ended_ns = totals[kind]
            moved_ns = max(0, min(ended_ns - time_ns, other_ns - other_ended_ns))
            totals[own] = (time_ns + moved_ns, count, ended_ns)
            totals[kind] = (other_ns - moved_ns, others, other_ended_ns)
            if not any(totals[kind]):
                del totals[kind]
