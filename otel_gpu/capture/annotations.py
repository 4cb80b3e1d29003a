"""
Whose an annotation is.

Who runs ``otel-gpu annotate`` is a script, a scheduler or a callback; what it says is of the
process around it that uses CUDA, or else of the outermost one that is watched. In both cases the
caller has to be the owner of that process, or root; and who names a process by its number has to
count processes as the agent does.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from otel_gpu import wire
from otel_gpu.ancestry import Ancestry
from otel_gpu.procfs.process_facts import parent_of

_MAX_PARENTS: Final = 16_384
_MAX_DEPTH: Final = 64


class Annotations:
    """
    Finds whose annotations are.

    Args:
        images: ``image_ktime_ns`` by pid of every process that is watched.
        uses_cuda: Says whether a process does.
        lose: Is called for each one that is nobody's, and might have been said to this agent.
        watch_all: Whether it hears all; else others may be told what is not of its processes.
    """

    def __init__(
        self,
        images: Mapping[int, int],
        uses_cuda: Callable[[int], bool],
        lose: Callable[[], None],
        *,
        watch_all: bool = False,
    ) -> None:
        self._images = images
        self._uses_cuda = uses_cuda
        self._lose = lose
        self._watch_all = watch_all
        self._ancestry = Ancestry(_MAX_PARENTS, _MAX_DEPTH)

    def after_fork(self, parent_pid: int, child_pid: int) -> None:
        """Take in who made whom."""
        self._ancestry.note(parent_pid, child_pid)

    def place(self, record: bytes) -> Iterator[bytes]:
        """Yield the record of an annotation, with whom it is about; nothing if that is nobody."""
        fields = wire.ANNOTATION_RECORD.named(record)
        pid = self._subject(fields)
        if pid is None:
            if self._watch_all or {fields["pid"], fields["asked_pid"]} & self._images.keys():
                self._lose()
            return
        whose = {"pid": pid, "tid": pid, "image_ktime_ns": self._images[pid]}
        yield wire.ANNOTATION_RECORD.build(**(fields | whose))

    def _subject(self, fields: Mapping[str, int]) -> int | None:
        caller, asked = fields["pid"], fields["asked_pid"]
        if asked == wire.ANNOTATE_SELF:
            return caller if caller in self._images else None
        if asked:
            is_known = fields["annotation_flags"] & wire.ANNOTATION_SAME_NAMESPACE
            return asked if is_known and self._may(fields["uid"], asked) else None
        ancestors = self._ancestry.of(caller, parent_of)
        around = [pid for pid in ancestors if self._may(fields["uid"], pid)]
        using = (pid for pid in around if self._uses_cuda(pid))
        return next(using, around[-1] if around else None)

    def _may(self, uid: int, pid: int) -> bool:
        if pid not in self._images:
            return False
        try:
            # Root may, also when the process has ended meanwhile.
            return uid == 0 or uid == Path(f"/proc/{pid}").stat().st_uid
        except OSError:
            return False
