"""What a report does not know, in words."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from otel_gpu.findings.words import count_of, format_time, printable

# Fewer change nothing that a reader would notice.
_REPAIRED_SHARE = 0.001


class Knowledge(NamedTuple):
    """What was there to be read."""

    has_calls: bool
    has_times: bool
    has_window: bool
    counts_start_unix_ns: int | None
    counts_end_unix_ns: int | None
    withheld: int
    switches: int
    switches_repaired: int
    failed_symbols: Mapping[str, int]
    chains_left_out: int
    series_left_out: int
    given_up: Mapping[str, int]
    unplaced_calls: int = 0
    errors: Mapping[str, int] = MappingProxyType({})


def write_notes(knowledge: Knowledge) -> Iterator[str]:
    """Yield what a reader has to know to read the figures rightly."""
    if knowledge.has_calls:
        yield (
            "Times of calls are host time: a launch ends when the kernel is queued, not when it "
            "has run. How long the device worked is not known."
        )
        yield _percentiles_note(knowledge.unplaced_calls)
    else:
        yield "No CUDA call was counted."
    if not knowledge.has_times:
        yield (
            "There is no account of the threads' time, so what bounds a process and what it waited "
            "for outside of the chosen calls is not known."
        )
    if knowledge.has_window:
        yield _counts_note(knowledge)
    if knowledge.withheld:
        yield (
            f"{count_of(knowledge.withheld, 'span')} withheld by the rate limit: these calls are "
            "counted, but if they were slow, why is not known."
        )
    if knowledge.switches_repaired > _REPAIRED_SHARE * knowledge.switches:
        yield (
            f"{knowledge.switches_repaired:,} of {knowledge.switches:,} context switches of the "
            "capture had to be repaired: the kernel did not tell that a thread ran again, as "
            "happens while other programs attach to its tracepoints. When it did is known from "
            "the scheduler's account to within a tick (1 to 10 ms), so that these times off the "
            "CPU may be that much too long or too short."
        )
    for library, count in sorted(knowledge.failed_symbols.items()):
        yield (
            f"{count_of(count, 'symbol')} of {printable(library)} could not be probed: calls of "
            "that kind are not seen."
        )
    if knowledge.chains_left_out:
        yield (
            f"{count_of(knowledge.chains_left_out, 'causal chain')} not listed: those that lost "
            "least. The figures of incidents hold them."
        )
    if knowledge.series_left_out:
        yield f"{count_of(knowledge.series_left_out, 'reading')} found no room in the figures."
    yield from _notes_on_the_agent(knowledge)


def _notes_on_the_agent(knowledge: Knowledge) -> Iterator[str]:
    if errors := {place: count for place, count in knowledge.errors.items() if count}:
        counts = ", ".join(f"{printable(place)} {n:,}" for place, n in sorted(errors.items()))
        yield f"Errors inside the agent, each of which cost what was being handled: {counts}."
    if given_up := {name: count for name, count in knowledge.given_up.items() if count}:
        counts = ", ".join(f"{name} {count:,}" for name, count in sorted(given_up.items()))
        yield f"What was too much to remember while causes were looked for: {counts}."


def _percentiles_note(unplaced_calls: int) -> str:
    if unplaced_calls:
        return (
            f"{count_of(unplaced_calls, 'call')} were counted and not kept one by "
            "one: they are in counts and totals, and in no percentile."
        )
    return (
        "Percentiles are read from histogram buckets; with the default layout they are "
        "within 9 %. Counts, errors, totals and bytes are exact."
    )


def _counts_note(knowledge: Knowledge) -> str:
    end_unix_ns = knowledge.counts_end_unix_ns
    start_unix_ns = knowledge.counts_start_unix_ns
    begin = "the beginning" if start_unix_ns is None else f"{format_time(start_unix_ns)} UTC"
    end = "the end" if end_unix_ns is None else f"{format_time(end_unix_ns)} UTC"
    return (
        f"Counters are read about once a second: calls are counted from {begin} to {end}. Where a "
        "process's longest call is from before that, the longest of the window is an estimate."
    )
