"""What somebody says of a process: names and values, which anybody may choose."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from otel_gpu import wire

MAX_PAIRS: Final = 16
"""Of one annotation."""
MAX_VALUE: Final = 128
"""Characters of a value."""

_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


def is_pair(text: str) -> bool:
    """Return whether a text is ``KEY=VALUE``, both of which can be printed and are short."""
    key, is_set, value = text.partition("=")
    is_key = _KEY.fullmatch(key) is not None
    return bool(is_set) and is_key and len(value) <= MAX_VALUE and (value.isprintable())


def read_pairs(raw: bytes) -> tuple[str, ...]:
    """Return the pairs of an annotation, each of which ends with a NUL; what is none is left out."""
    texts = (part.decode("utf-8", "replace") for part in raw.split(b"\0") if part)
    return tuple(filter(is_pair, texts))[:MAX_PAIRS]


def by_key(pairs: Iterable[str]) -> dict[str, str]:
    """Return values by their keys."""
    split = (pair.partition("=") for pair in pairs)
    return {key: value for key, _, value in split}


def pack_pairs(pairs: Sequence[str]) -> bytes:
    """Return pairs as they are passed; ``ValueError``: one is none, or they are too long."""
    for pair in pairs:
        if not is_pair(pair):
            raise ValueError(f"{pair!r} is not KEY=VALUE with a short value that can be printed")
    text = b"".join(pair.encode("utf-8", "replace") + b"\0" for pair in pairs)
    if len(pairs) > MAX_PAIRS or len(text) >= wire.ANNOTATION_BYTES:
        raise ValueError(f"more than {MAX_PAIRS} pairs, or {wire.ANNOTATION_BYTES - 1} bytes")
    return text
