"""JSON that anybody may have written: how much it may become is bounded before it is parsed."""

import json
from typing import Final

VALUES_OF_A_CONTAINER: Final = 8
"""So many values may come with each container that may: a container takes as much room."""


class ForeignJsonError(ValueError):
    """What is wrong; ``at`` is the byte, -1: not known."""

    def __init__(self, message: str, at: int = -1) -> None:
        super().__init__(message)
        self.at = at


def parse_foreign(data: bytes, max_containers: int) -> object:
    """
    Parse JSON; the caller bounds its size.

    Raises:
        ForeignJsonError: It is none, or holds more than it may.
    """
    containers = data.count(b"{") + data.count(b"[")
    if containers > max_containers or data.count(b",") > max_containers * VALUES_OF_A_CONTAINER:
        raise ForeignJsonError("it contains too many values")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        at = error.pos if isinstance(error, json.JSONDecodeError) else -1
        raise ForeignJsonError("it is cut, or not JSON", at) from None
