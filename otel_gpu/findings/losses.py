"""What a capture lost, by reason."""

from collections.abc import Mapping

_LOST = "counter_lost_"


def losses_of(counters: Mapping[str, int], rejected: Mapping[str, int]) -> dict[str, int]:
    """
    Return the losses that occurred, by reason.

    Args:
        counters: The kernel side's, by their enumerator's name.
        rejected: Records that could not be decoded, by reason.
    """
    lost = {
        name.removeprefix(_LOST): count
        for name, count in counters.items()
        if name.startswith(_LOST) and count
    }
    unread = {f"rejected_{reason}": count for reason, count in rejected.items() if count}
    return dict(sorted((lost | unread).items()))
