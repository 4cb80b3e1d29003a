"""What was said of processes from outside, and holds for those that they make, too."""

from typing import Final

from otel_gpu.ancestry import Ancestry
from otel_gpu.annotations import by_key
from otel_gpu.enrich.activities import ExitActivity, ForkActivity
from otel_gpu.enrich.identities import ProcessImage
from otel_gpu.enrich.marks import AnnotationActivity
from otel_gpu.recent import Recent

MAX_PROCESSES: Final = 1_024
"""Of which something was said: those of which it was said last."""
MAX_KEYS: Final = 32
"""Of one process: those that were set last."""

_MAX_PARENTS: Final = 4_096
# With the process itself, 64.
_MAX_DEPTH: Final = 63
_PARENT: Final = "process.parent_pid"


class Annotations:
    """What holds now; bounded."""

    def __init__(self) -> None:
        self._said: Recent[int, Recent[str, str]] = Recent(MAX_PROCESSES)
        self._ancestry = Ancestry(_MAX_PARENTS, _MAX_DEPTH)

    def observe(self, activity: AnnotationActivity | ForkActivity | ExitActivity) -> None:
        """Take in what is said, who makes whom, and who ends."""
        match activity:
            case AnnotationActivity():
                pid = activity.process.pid
                said = self._said.setdefault(pid, Recent(MAX_KEYS))
                said.update(by_key(activity.event.text.splitlines()))
                self._said[pid] = said
            case ForkActivity():
                self._ancestry.note(activity.process.pid, activity.child.pid)
                # Another process had the number.
                self._said.pop(activity.child.pid, None)
            case ExitActivity() if not activity.is_replaced:
                self._said.pop(activity.process.pid, None)

    def of(self, process: ProcessImage) -> dict[str, str]:
        """Return what holds for a process: what was said of it goes before what was of its parents."""
        if not self._said:
            return {}
        found: dict[str, str] = {}
        parent_pid = process.attributes.get(_PARENT)
        known = {process.pid: parent_pid} if isinstance(parent_pid, int) else {}
        for pid in (process.pid, *self._ancestry.of(process.pid, known.get)):
            found = {**self._said.get(pid, {}), **found}
        return found
