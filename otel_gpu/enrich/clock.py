"""Conversion from the kernel's clock to Unix time."""

# Some facts about kernel clocks
# ------------------------------
#
# The kernel side stamps everything with CLOCK_MONOTONIC (ktime). It never jumps, which makes
# durations and orders exact, and it stands still while the machine is suspended. It has no time of
# day. CLOCK_REALTIME does (Unix time), and it jumps: when an administrator sets it, when NTP steps
# it, at a leap second.
#
# NTP steers both clocks at the same rate. So their difference stays constant while the clock is
# only slewed by frequency, drifts by up to 500 microseconds per second while a slew by adjtime(3)
# is being worked off, and changes at once on a step or a suspend. CLOCK_BOOTTIME, in which /proc
# has the start of a process, is CLOCK_MONOTONIC plus all time spent in suspend.
#
# So the difference is measured repeatedly: a sample is a pair of both clocks, read together. The
# samples are part of the record stream and not read here, because a replay must map the same times.
#
# A ktime is mapped by the sample in force at that time, the last one taken at or before it. A step
# of the clock then moves only what happened after it was noticed. A call that lasts across a step
# gets a wrong duration in Unix time (its end maps by another sample than its start), so durations
# are computed in ktime.

from bisect import bisect_right

MAX_SAMPLES = 4096

_LAST_UNIX_NS = (1 << 63) - 1


class UnixClock:
    """
    Maps ktime to Unix time by the sample in force.

    Times before the first sample use the first. Without any sample the two clocks count as equal,
    which dates everything to 1970 and is plain to see.
    """

    def __init__(self) -> None:
        self._ktimes: list[int] = []
        self._offsets: list[int] = []
        # The newest sample, which nearly every conversion needs.
        self._since_ktime_ns = 0
        self._offset_ns = 0

    def add_sample(self, ktime_ns: int, unix_ns: int) -> None:
        """
        Add a sample: both clocks, read together.

        Samples can come late; the newest ``MAX_SAMPLES`` are kept.
        """
        index = bisect_right(self._ktimes, ktime_ns)
        self._ktimes.insert(index, ktime_ns)
        self._offsets.insert(index, unix_ns - ktime_ns)
        if len(self._ktimes) > MAX_SAMPLES:
            # Half at once: dropping one by one would move the lists at every sample.
            del self._ktimes[: MAX_SAMPLES // 2]
            del self._offsets[: MAX_SAMPLES // 2]
        self._offset_ns = self._offsets[-1]
        # A single sample is in force for all time.
        self._since_ktime_ns = self._ktimes[-1] if len(self._ktimes) > 1 else 0

    def to_unix_ns(self, ktime_ns: int) -> int:
        """
        Return the Unix time of a ktime, within the range of OTLP.

        Only a broken record has a time before 1970 or after the year 2262.
        """
        if ktime_ns >= self._since_ktime_ns:
            unix_ns = ktime_ns + self._offset_ns
        else:
            unix_ns = ktime_ns + self.offset_ns(ktime_ns)
        return clamp_unix_ns(unix_ns)

    def date(self, end_ktime_ns: int, earlier_ktime_ns: int) -> tuple[int, int]:
        """
        Return the Unix times of an event's end, and of an earlier time of it.

        Both by the sample in force at the end: a clock that was set in between must not make the
        event longer or shorter.
        """
        end_unix_ns = end_ktime_ns + self._offset_ns
        # Nearly every event is newer than the newest sample.
        if end_ktime_ns < self._since_ktime_ns or not 0 <= end_unix_ns <= _LAST_UNIX_NS:
            end_unix_ns = self.to_unix_ns(end_ktime_ns)
        return end_unix_ns, clamp_unix_ns(end_unix_ns + earlier_ktime_ns - end_ktime_ns)

    def offset_ns(self, ktime_ns: int) -> int:
        """Return the difference from ktime to Unix time, as it was at a ktime."""
        if not self._offsets:
            return 0
        return self._offsets[max(bisect_right(self._ktimes, ktime_ns) - 1, 0)]


def clamp_unix_ns(unix_ns: int) -> int:
    """Return a Unix time, clamped to the range of OTLP: only a broken record exceeds it."""
    if 0 <= unix_ns <= _LAST_UNIX_NS:
        return unix_ns
    return 0 if unix_ns < 0 else _LAST_UNIX_NS
