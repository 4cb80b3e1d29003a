"""Reasons for rejected records; the texts are values of an attribute of the metric that counts them."""

from otel_gpu.wire.events import Event

SHORT = "short"
SIZE_MISMATCH = "size_mismatch"
UNKNOWN_KIND = "unknown_kind"
BAD_JSON = "bad_json"
BAD_BODY = "bad_body"


class RejectedError(Exception):
    """A record that cannot be decoded; its text is the reason that is counted."""


class PartlyRejectedError(Exception):
    """Some entries of a record cannot be decoded; ``event`` has the others."""

    def __init__(self, event: Event, entries: int) -> None:
        super().__init__(BAD_BODY)
        self.event = event
        self.entries = entries
