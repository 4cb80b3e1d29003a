"""Why an interpreter cannot be had here."""


class Missing(Exception):  # noqa: N818 -- a reason to skip, not a fault
    """What the host lacks, in words that end a line of a test report."""
