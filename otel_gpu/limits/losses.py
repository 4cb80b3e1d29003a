"""Reasons of losses that both the export and the recorder have."""

from enum import StrEnum


class LossReason(StrEnum):
    """Why something was lost; each package has more reasons of its own."""

    TOO_LARGE = "too_large"
    INTERNAL_ERROR = "internal_error"
    """An error of our own."""
