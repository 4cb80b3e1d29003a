"""What NCCL's own service says of a job, as sentences of a document."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_gpu.enrich.activities import RasActivity

_MAX_NOTES: Final = 8
_MAX_RANKS: Final = 4


class RasNotes:
    """The latest that the service said."""

    def __init__(self) -> None:
        self._info: Mapping[str, Any] = {}

    def observe(self, activity: RasActivity) -> None:
        """Take in a newer answer."""
        if "is_there" in activity.info:
            self._info = activity.info if activity.info["is_there"] else {}

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each communicator with ranks that do not answer or have an error."""
        said = [text for one in self._info.get("communicators", ()) for text in _of(one)]
        yield from said[:_MAX_NOTES]
        if len(said) > _MAX_NOTES:
            yield f"NCCL's own service (RAS) says so of {len(said) - _MAX_NOTES:,} more communicators."


def _of(one: Mapping[str, Any]) -> Iterator[str]:
    silent, name = one.get("silent", {}), f"communicator {one['id']}"
    if count := sum(silent.values()):
        how = ", ".join(f"{number:,} {state}" for state, number in silent.items() if number)
        yield (
            f"NCCL's own service (RAS) hears nothing of {count:,} of {one.get('size', 0):,} ranks of "
            f"{name} ({how}){_listed(one.get('absent', ()))}."
        )
    for error, count in one.get("errors", {}).items():
        ranks = "1 rank" if count == 1 else f"{count:,} ranks"
        yield f"NCCL's own service (RAS) says of {ranks} of {name}: {error}."


def _listed(ranks: list[Mapping[str, Any]]) -> str:
    if not ranks:
        return ""
    names = [
        f"rank {one['rank']}" + (f" (pid {one['pid']} on {one['host']})" if one.get("host") else "")
        for one in ranks[:_MAX_RANKS]
    ]
    more = ", \N{HORIZONTAL ELLIPSIS}" if len(ranks) > _MAX_RANKS else ""
    return f": {', '.join(names)}{more}"
