"""What a capture lost, by reason."""

from collections.abc import Mapping
from typing import Any

_LOST = "counter_lost_"


def losses_of(
    counters: Mapping[str, int],
    rejected: Mapping[str, int],
    status: Mapping[str, Any] | None = None,
) -> dict[str, int]:
    """
    Return the losses that occurred, by reason.

    Args:
        counters: The kernel side's, by their enumerator's name.
        rejected: Records that could not be decoded, by reason.
        status: The agent's last word about itself, for its errors by place.
    """
    lost = {
        name.removeprefix(_LOST): count
        for name, count in counters.items()
        if name.startswith(_LOST) and count
    }
    unread = {f"rejected_{reason}": count for reason, count in rejected.items() if count}
    return dict(sorted((lost | unread | _faults(status or {})).items()))


def _faults(status: Mapping[str, Any]) -> dict[str, int]:
    return {
        f"{kind}_{place}": count
        for kind, field in (("error", "errors"), ("skipped", "skipped"))
        for place, count in status.get(field, {}).items()
        if count
    }
