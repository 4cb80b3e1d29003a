"""Stacks that hold or allocated device memory, as a stack report."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from otel_gpu.enrich.activities import Activity, BlocksActivity, MemoryActivity
from otel_gpu.enrich.identity.identities import ProcessKey, Program
from otel_gpu.report.document import OTHER_PROCESSES_PID, Window, key_of
from otel_gpu.report.extent import CaptureExtent
from otel_gpu.report.stacks.top_stacks import (
    IN_USE,
    MAX_ROWS,
    StackKind,
    StackMeasure,
    StackReport,
    StackRow,
)
from otel_gpu.report.wording.formats import count_of
from otel_gpu.state.agent_health import AgentReadings
from otel_gpu.state.memory.blocks import AllocatorState, MemoryStack
from otel_gpu.state.memory.snapshot import NOT_SAMPLED
from otel_gpu.state.memory.stacks import snapshot_stacks, unknown_stack
from otel_gpu.wire.memory_snapshot import MemorySnapshot

_ANYBODY = Program(
    pid=OTHER_PROCESSES_PID,
    program_ktime_ns=0,
    comm="process of the snapshot",
    start_unix_ns=0,
    attributes={},
)


class MemoryStackCollector:
    """
    Adds up device memory by stack.

    Args:
        window: The reported time.
        kind: One of ``top_stacks.MEMORY``.
        pids: Only these processes; empty: all. The process of a snapshot is unknown.
        rejected: Records that could not be decoded, by reason; read at the end.
    """

    def __init__(
        self,
        window: Window = Window(),  # noqa: B008 -- immutable
        *,
        kind: StackKind = IN_USE,
        pids: Iterable[int] = (),
        rejected: Mapping[str, int] | None = None,
    ) -> None:
        self._window = window
        self._kind = kind
        self._pids = frozenset(pids)
        self._rejected = {} if rejected is None else rejected
        self._blocks = AllocatorState(window)
        self._snapshots: dict[int, MemorySnapshot] = {}
        self._agent = AgentReadings()
        self._extent = CaptureExtent()

    def observe(self, activity: Activity) -> None:
        """Add one activity."""
        self._extent.observe(activity)
        self._agent.observe(activity)
        match activity:
            case BlocksActivity() if not self._pids or activity.process.pid in self._pids:
                self._blocks.observe(activity)
            case MemoryActivity() if not self._pids:
                self._snapshots[activity.snapshot.device] = activity.snapshot
            case _:
                pass

    def finish(self, source: str, notes: Sequence[str] = ()) -> StackReport:
        """Make the report; ``source`` is its name, ``notes`` are further notes."""
        every = sorted(self._rows(), key=_order)
        rows, rest = every[:MAX_ROWS], every[MAX_ROWS:]
        start_unix_ns = self._window.start_unix_ns or self._extent.start_unix_ns
        end_unix_ns = self._window.end_unix_ns or self._extent.end_unix_ns
        known = sum(row.seen for row in rows if row.stack.id)
        left_out = [f"{count_of(len(rest), 'stack')} found no room."] if rest else []
        return StackReport(
            source=source,
            start_unix_ns=start_unix_ns,
            end_unix_ns=max(start_unix_ns, end_unix_ns),
            kind=self._kind,
            by=StackMeasure.BYTES,
            rows=tuple(rows),
            seen=known,
            without_stack=sum(row.seen for row in rows) - known,
            stand_for=known,
            counted=None,
            losses=self._agent.losses(self._rejected),
            notes=(*left_out, *notes),
        )

    def _rows(self) -> Iterable[StackRow]:
        rows: dict[tuple[ProcessKey, int, int, str], StackRow] = {}
        for one in self._stacks():
            if one.size_bytes <= 0 and one.blocks <= 0:
                continue
            process, stack = one.process or _ANYBODY, one.stack or unknown_stack(NOT_SAMPLED)
            key = (key_of(process), one.device, stack.id, stack.frames[0].function)
            name = f"device {one.device}"
            known = rows.get(
                key,
                StackRow(
                    process=process,
                    name=name,
                    stack=stack,
                    seen=0,
                    calls=0,
                    time_ns=0,
                    size_bytes=0,
                    device=one.device,
                ),
            )
            blocks = known.seen + max(0, one.blocks)
            size_bytes = known.size_bytes + max(0, one.size_bytes)
            rows[key] = known._replace(seen=blocks, calls=blocks, size_bytes=size_bytes)
        return rows.values()

    def _stacks(self) -> Iterator[MemoryStack]:
        for _, snapshot in sorted(self._snapshots.items()):
            yield from snapshot_stacks(snapshot, self._kind)
        yield from self._blocks.memory_stacks(self._kind)


def _order(row: StackRow) -> tuple[object, ...]:
    return -row.size_bytes, -row.calls, row.process.pid, row.name, row.stack.id, row.stack.frames
