"""
The walk through the rooms: the only module that joins them all.

Live capture and replay run the same function, and nothing in it asks which it is.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from otel_gpu.decode.decoder import decode
from otel_gpu.enrich.activities import Activity
from otel_gpu.enrich.enricher import Enricher


def process(
    batches: Iterable[Sequence[bytes]],
    enricher: Enricher,
    observers: Sequence[Callable[[Activity], object]],
    rejected: Counter[str],
) -> None:
    """
    Take records through decode and enrich, and hand each activity to every observer.

    Observers see an activity in the order in which they are given. What cannot be
    decoded is counted in ``rejected`` by reason.
    """
    records = itertools.chain.from_iterable(batches)
    for activity in enricher.enrich(decode(records, rejected)):
        for observe in observers:
            observe(activity)
