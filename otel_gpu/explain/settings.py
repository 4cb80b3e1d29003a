"""The limits of explanation: what is slow, what matters, how much is kept."""

from dataclasses import dataclass

from otel_gpu.state.nccl.rank_comparison import HANG_NS

_MS = 1_000_000
_S = 1_000 * _MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """
    The thresholds and limits of the explainer.

    Attributes:
        slow_factor: A call or gap is slow from this many medians of its series on.
        slow_floor_ns: Nothing shorter is slow.
        minimum_calls: How many calls a series needs before its median counts. A cause with this many effects in one window is chronic, too.
        short_life_ns: In a process that lived no longer, effects with less than ``medium_lost_ns``
            over
          their median do not matter. Nor do those without a median if it lived no longer than
          ``settle_ns``. Time lost to the host always does.
        settle_ns: How long an effect waits, in the stream's time, for events that belong to it and
          arrive later: forks that end, the next reading of the counters.
        max_depth: How many threads a chain follows, besides the effect's own.
        incident_gap_ns: An incident ends when nothing was added to it for this long.
        high_share: Host share of the excess from which severity can be high.
        high_lost_ns: Time lost to the host from which it can be high.
        high_window_share: The same as a share of the incident's window.
        medium_share: Host share from which severity can be medium.
        medium_lost_ns: Time lost to the host from which it can be medium.
        minimum_budget_ns: The least time of launching threads for a verdict.
        collective_hang_ns: A rank that waits this long in a collective hangs, if others of this
            host did
          not call it or asked for something else.
        collective_stuck_ns: It hangs from this on if all of them called it, or from four times what
            it
          took before.
        chronic_window_ns: The windows in which chronic causes are found.
        chronic_share: A cause is chronic from this share of the launching threads' time on,
        chronic_lost_ns: and from this much lost in each second.
        chronic_high_share: Share of their time from which a chronic cause is of high severity.
        effects_per_second: How many effects that ended in one second are explained, those that lost
            most;
          0: all.
        max_pending: Effects that wait to settle; further ones are settled early.
        max_intervals: Stalls and calls kept, of all threads.
        max_thread_intervals: Stalls, and calls, kept of one thread.
        max_samples: Samples of threads on a CPU kept, of all threads.
        max_series: Histograms kept.
        max_processes: Programs kept.
        max_incidents: Incidents kept; the least severe are evicted first.
        max_chains: Chains kept in one incident, those that lost most time.
        max_evidence: Intervals kept with one cause, the longest.
    """

    slow_factor: int = 3
    slow_floor_ns: int = 1 * _MS
    minimum_calls: int = 20
    short_life_ns: int = 500 * _MS
    settle_ns: int = 3 * _S
    max_depth: int = 4
    incident_gap_ns: int = 10 * _S
    high_share: float = 0.5
    high_lost_ns: int = 100 * _MS
    high_window_share: float = 0.01
    medium_share: float = 0.25
    medium_lost_ns: int = 20 * _MS
    minimum_budget_ns: int = 100 * _MS
    collective_hang_ns: int = HANG_NS
    collective_stuck_ns: int = 10 * _S
    chronic_window_ns: int = 10 * _S
    chronic_share: float = 0.05
    chronic_lost_ns: int = 50 * _MS
    chronic_high_share: float = 0.1
    effects_per_second: int = 0
    max_pending: int = 4096
    max_intervals: int = 16384
    max_thread_intervals: int = 512
    max_samples: int = 16384
    max_series: int = 8192
    max_processes: int = 4096
    max_incidents: int = 256
    max_chains: int = 32
    max_evidence: int = 8
