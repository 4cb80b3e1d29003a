"""Who somebody is that figures name by a pid and a tid only."""

from collections import OrderedDict
from collections.abc import Iterable

from otel_gpu.enrich.activities import Activity, WhoActivity
from otel_gpu.enrich.identities import ProcessImage, Who
from otel_gpu.enrich.strangers import who_of

MAX_NAMES = 8_192
"""Processes and threads that are remembered, those that were named last."""


class Names:
    """Watches activities; bounded."""

    def __init__(self) -> None:
        self._names: OrderedDict[tuple[int, int], Who] = OrderedDict()

    def observe(self, activity: Activity) -> None:
        """Take one activity."""
        if isinstance(activity, WhoActivity):
            self._learn(activity.who)

    def learn_images(self, images: Iterable[ProcessImage]) -> None:
        """Take in watched processes."""
        for image in images:
            self._learn(who_of(image))

    def find(self, who: Who) -> Who:
        """Return who somebody is, as far as that is known; what is known is kept."""
        process, thread = (self._names.get((who.pid, tid)) for tid in (0, who.tid))
        if process:
            who = process._replace(tid=who.tid, comm=who.comm or process.comm)
        if thread and who.tid:
            who = who._replace(function=thread.function)
        return who

    def _learn(self, who: Who) -> None:
        self._names[who.pid, who.tid] = who
        self._names.move_to_end((who.pid, who.tid))
        if len(self._names) > MAX_NAMES:
            self._names.popitem(last=False)
