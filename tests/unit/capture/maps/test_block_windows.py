"""Blocks that are reported too often are seen in windows."""

import pytest

from otel_gpu import wire
from otel_gpu.capture.maps.block_windows import MAX_PAUSE_S, BlockWindows
from otel_gpu.config import load
from otel_gpu.procfs.mapped_files import FileId

LIMIT = 1_000
LIBRARY, OTHER = FileId(1, 2), FileId(1, 3)
IMAGES = {5: 50, 6: 60}


class Blocks:
    """Reports of each image, on one device."""

    def __init__(self):
        self.reports = {}

    def read_totals(self):
        for pid, reports in self.reports.items():
            key = wire.DEVICE_KEY.build(program_ktime_ns=IMAGES.get(pid, 1), pid=pid)
            frees = reports // 2
            yield key, wire.MEMORY_TOTALS.build(allocations=reports - frees, frees=frees)


class Attachments:
    """Who reports to which library, and whether that is seen."""

    def __init__(self):
        self.users = {LIBRARY: {5}, OTHER: {6}}
        self.seen = {LIBRARY, OTHER}

    def reporters(self):
        return self.users

    def see_reports(self, library):
        self.seen.add(library)

    def ignore_reports(self, library):
        self.seen.remove(library)


class Capture:
    """A capture whose clock is moved by hand."""

    def __init__(self):
        self.now_s = 100.0
        self.blocks, self.attachments = Blocks(), Attachments()
        config = load(None, {}, {"memory.blocks_per_second": LIMIT})
        self.windows = BlockWindows(self.blocks, self.attachments, config, lambda: self.now_s)

    def adjust(self, seconds=0.0, **reports):
        """What is forgotten when some time has passed with so many reports of each process."""
        self.now_s += seconds
        for pid, count in reports.items():
            number = int(pid.removeprefix("of_"))
            self.blocks.reports[number] = self.blocks.reports.get(number, 0) + count
        return list(self.windows.adjust(IMAGES))


@pytest.fixture
def capture():
    capture = Capture()
    assert capture.adjust() == []
    return capture


def test_as_many_as_may_be_are_seen(capture):
    """Up to the limit itself, of each process."""
    assert capture.adjust(0.5, of_5=LIMIT // 2, of_6=LIMIT // 2) == []

    assert capture.attachments.seen == {LIBRARY, OTHER}
    assert capture.windows.counts == {"pauses": 0, "paused_ms": 0}


def test_too_many_are_followed_by_a_pause_that_makes_up_for_them(capture):
    """Five times as many in half a second: two seconds without. The other library is left alone."""
    capture.adjust(0.5, of_5=5 * LIMIT // 2, of_6=1)
    assert capture.attachments.seen == {OTHER}

    assert capture.adjust(1.9) == []
    assert capture.attachments.seen == {OTHER}
    assert capture.adjust(0.1) == [[(5, 50)]]
    assert capture.attachments.seen == {LIBRARY, OTHER}
    assert capture.windows.counts == {"pauses": 1, "paused_ms": 2_000}


def test_what_is_forgotten_is_said_before_the_probe_stands(capture):
    """Else a report of the window could be forgotten with it."""
    capture.adjust(0.5, of_5=LIMIT)
    capture.now_s += 10

    windows = capture.windows.adjust(IMAGES)
    assert next(windows) == [(5, 50)]
    assert LIBRARY not in capture.attachments.seen
    assert list(windows) == []
    assert LIBRARY in capture.attachments.seen


def test_a_window_comes_again_however_many_there_were(capture):
    """Totals are to be read from time to time."""
    capture.adjust(0.5, of_5=10_000 * LIMIT)

    assert capture.adjust(MAX_PAUSE_S) == [[(5, 50)]]


def test_a_library_that_nobody_has_any_more_is_forgotten(capture):
    """It has no probe to come again."""
    capture.adjust(0.5, of_5=5 * LIMIT)
    del capture.attachments.users[LIBRARY]

    assert capture.adjust(60) == []
    assert capture.attachments.seen == {OTHER}
