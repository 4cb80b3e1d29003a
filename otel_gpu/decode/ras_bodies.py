"""The body of RECORD_RAS: what NCCL's own service said of a job."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_gpu.capture.ras_status import (
    MAX_COMMUNICATORS,
    MAX_NUMBER,
    MAX_OPERATIONS,
    MAX_RANKS,
    STATES,
)

MAX_TEXT: Final = 512
"""Characters of a text in it."""

_RANK: Final = {"rank": int, "host": str, "pid": int}
SHAPE: Final[Mapping[str, Any]] = {
    "address": str,
    "format": str,
    "nccl_version": str,
    "timeouts": int,
    "collection_s": float,
    "communicators_count": int,
    "dead_processes": int,
    "unresponsive_processes": int,
    "failed": (Mapping, int),
    "communicators": [
        {
            "id": str,
            "size": int,
            "answering": int,
            "silent": (Mapping, int),
            "absent": [{**_RANK, "state": str}],
            "errors": (Mapping, int),
            "calls": (Mapping, list),
            "behind": [{**_RANK, "operation": str, "calls": int}],
        }
    ],
}
"""See ``bodies._check``. Of calls there are the least and the most of any rank, by operation."""
_COUNTS = ("timeouts", "communicators_count", "dead_processes", "unresponsive_processes")
_ID_DIGITS = 16
_HEXADECIMAL = frozenset("0123456789abcdef")


def check_ras(body: Mapping[str, Any]) -> None:
    """
    Check what a shape cannot say.

    Raises:
        TypeError: It is not what the service may say.
    """
    communicators = body.get("communicators", [])
    good = (
        isinstance(body.get("is_there", True), bool)
        and all(
            len(body.get(name, "")) <= MAX_TEXT for name in ("address", "format", "nccl_version")
        )
        and all(0 <= body.get(name, 0) <= MAX_NUMBER for name in _COUNTS)
        and body.get("collection_s", 0.0) >= 0
        and _are_counts(body.get("failed", {}), MAX_RANKS)
        and len(communicators) <= MAX_COMMUNICATORS
        and all(all(_findings(one)) for one in communicators)
    )
    if not good:
        raise TypeError("body is not what NCCL's service says of a job")


def _findings(one: Mapping[str, Any]) -> Iterator[bool]:
    name = one.get("id", "")
    yield len(name) == _ID_DIGITS and set(name) <= _HEXADECIMAL
    yield all(0 <= one.get(key, 0) <= MAX_NUMBER for key in ("size", "answering"))
    silent, calls = one.get("silent", {}), one.get("calls", {})
    yield silent.keys() <= set(STATES) and _are_counts(silent, len(STATES))
    yield _are_counts(one.get("errors", {}), MAX_RANKS)
    yield len(calls) <= MAX_OPERATIONS + 1 and all(
        len(operation) <= MAX_TEXT for operation in calls
    )
    yield all(map(_is_range, calls.values()))
    for listed in ("absent", "behind"):
        ranks = one.get(listed, ())
        yield len(ranks) <= MAX_RANKS and all(map(_is_rank, ranks))


def _is_range(counts: Any) -> bool:  # noqa: ANN401 -- any JSON value
    if not isinstance(counts, list) or len(counts) != 2:  # noqa: PLR2004 -- the least and the most
        return False
    return all(type(one) is int for one in counts) and 0 <= counts[0] <= counts[1] <= MAX_NUMBER


def _is_rank(rank: Mapping[str, Any]) -> bool:
    texts = (rank.get(name, "") for name in ("host", "state", "operation"))
    numbers = (rank.get(name, 0) for name in ("rank", "pid", "calls"))
    return all(len(text) <= MAX_TEXT for text in texts) and all(
        0 <= number <= MAX_NUMBER for number in numbers
    )


def _are_counts(counts: Mapping[str, int], most: int) -> bool:
    return len(counts) <= most and all(
        len(name) <= MAX_TEXT and 0 <= count <= MAX_NUMBER for name, count in counts.items()
    )
