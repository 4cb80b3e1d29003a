"""Why records cannot be understood; the words are those of the metric that counts them."""

SHORT = "short"
SIZE_MISMATCH = "size_mismatch"
UNKNOWN_KIND = "unknown_kind"
BAD_JSON = "bad_json"
BAD_BODY = "bad_body"


class RejectedError(Exception):
    """A record that cannot be understood; its text is the reason that is counted."""
