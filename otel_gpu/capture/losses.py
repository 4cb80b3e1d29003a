"""Losses that the agent counts, in RECORD_STATUS; those of the kernel side are ``enum counter``."""

from enum import StrEnum


class AgentLoss(StrEnum):
    """What was lost, and why."""

    FILE_UNREAD = "file_unread"
    """Files of processes that were not read."""
    END_UNREAD = "end_unread"
    """Records that were not read at the end."""
    KERNEL_LOG_OVERRUN = "kernel_log_overrun"
    """Lines of the kernel's log that were overwritten before they were read."""
    PRELOAD_UNREAD = "preload_unread"
    """Readings of preloaded programs whose memory was not read."""
    PRELOAD_REJECTED = "preload_rejected"
    """Invalid series of preloaded programs."""
    PRELOAD_DEPTH_EXCEEDED = "preload_depth_exceeded"
    PRELOAD_SLOTS_FULL = "preload_slots_full"
    PRELOAD_COPIES_FULL = "preload_copies_full"
    PRELOAD_OTHER = "preload_other"
    """Of a preload library that has more reasons than the agent knows."""
