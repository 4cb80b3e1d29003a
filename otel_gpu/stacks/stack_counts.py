"""What a capture counts about stacks, in ``stacks`` of RECORD_STATUS."""

from enum import StrEnum


class StackCount(StrEnum):
    """One count of calls and stalls, samples, Python code objects or symbols."""

    # Calls and stalls that refer to a sample.
    RESOLVED = "resolved"
    MEMO_HITS = "memo_hits"
    """Those of ``RESOLVED`` that took no walk."""
    INCOMPLETE = "incomplete"
    """Those of ``RESOLVED`` that lack frames."""
    WITHOUT_SAMPLE = "without_sample"
    """The sample was lost."""
    DISTINCT = "distinct"
    """Stacks that were sent."""
    # Samples.
    UNUSED = "unused"
    """Nothing referred to them in time."""
    REJECTED = "rejected"
    """They were malformed."""
    # Python code objects and symbols.
    CODE_REJECTED = "code_rejected"
    """Malformed."""
    CODE_FORGOTTEN = "code_forgotten"
    """Evicted, because there were too many."""
    PERF_MAP_MALFORMED = "perf_map_malformed"
    """Lines."""
    MAPPING_LEFT_OUT = "mapping_left_out"
    """Executable mappings beyond the bound of a process."""
    # Threads that were dumped to find calls from before their process was watched.
    THREADS_DUMPED = "threads_dumped"
    DUMP_UNREADABLE = "dump_unreadable"
    """User space could not be read."""
    DUMP_INCOMPLETE = "dump_incomplete"
    """A part of the stack is missing."""
    DUMP_NOT_FOLLOWED = "dump_not_followed"
    """Later calls of the thread are unknown."""
    DUMP_REFUSED = "dump_refused"
    """The kernel refused to dump the thread."""
