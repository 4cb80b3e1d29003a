"""What is read of the maps, and freed in them."""

from collections import Counter

import pytest

from otel_gpu import wire
from otel_gpu.capture.maps.blocks import STACK_OF_ONE
from otel_gpu.capture.maps.map_snapshots import Snapshots
from otel_gpu.capture.maps.thresholds import MINIMUM_CALLS
from otel_gpu.config import Config
from otel_gpu.wire.decoder import decode
from tests.synthetic import series, times_entry

LIVING, GONE = (10, 100), (11, 100)


def entry(image, calls=1):
    pid, program_ktime_ns = image
    return series(
        program_ktime_ns=program_ktime_ns,
        pid=pid,
        metric=wire.METRIC_CALL_DURATION,
        buckets={3: calls},
        sum=calls,
        min=1,
        max=1,
    )


def taken(image, ended_ns):
    """Time in a run queue, in which another process had the CPU."""
    pid, program_ktime_ns = image
    return times_entry(
        program_ktime_ns=program_ktime_ns, pid=pid, state=1, context=0, who_pid=99, time_ns=ended_ns
    )


class Blocks:
    """Holders in memory."""

    def __init__(self):
        self.totals, self.holders, self.forgotten = {}, {}, []

    def forget_blocks(self, images):
        self.forgotten += images

    def read_totals(self):
        return iter(list(self.totals.items()))

    def forget_totals(self, key):
        del self.totals[key]

    def read_holders(self):
        return iter(list(self.holders.items()))

    def forget_holder(self, key):
        del self.holders[key]


class Communicators(dict):
    """Communicators in memory."""

    def read(self):
        return iter(list(self.items()))

    def forget(self, key):
        del self[key]


class PreloadedPrograms:
    """Nobody counts its own calls."""

    detectors = None

    def keys(self):
        return set()

    def close(self, programs):
        pass

    def set_thresholds(self, thresholds):
        pass


class Programs:
    """Maps in memory."""

    preloaded = PreloadedPrograms()

    def __init__(self, *keys, calls=1):
        self.blocks, self.communicators, self.detectors = Blocks(), Communicators(), None
        self.aggregates = dict(entry(key, calls) for key in keys)
        self.times = dict(
            times_entry(program_ktime_ns=ktime_ns, pid=pid, state=0, context=0, time_ns=5)
            for pid, ktime_ns in keys
        )
        self.thresholds = {}
        self.processes = self.shares = self.lifecycle = self
        self.fill = 0.0
        self.booked = 0
        self.ended = set()

    def end(self, programs):
        self.ended |= set(programs)

    def program_ktime_ns(self, pid):
        return 0

    def read_aggregates(self, _programs=None):
        return iter(self.aggregates.items())

    def forget_aggregate(self, key):
        del self.aggregates[key]

    def book_passing(self):
        """No time passes."""
        self.booked += 1

    def read_times(self, _programs=None):
        return iter(self.times.items())

    def forget_times(self, key):
        del self.times[key]

    def set_threshold(self, *found):
        self.thresholds[found[:4]] = found[4]

    def forget_threshold(self, *name):
        del self.thresholds[name]


@pytest.fixture
def programs():
    return Programs(LIVING, GONE, calls=MINIMUM_CALLS)


@pytest.fixture
def snapshots(programs):
    return Snapshots(programs, Config(), None)


def read(snapshots):
    return [*snapshots.aggregates(), *snapshots.times()]


def test_series_of_an_image_whose_end_was_not_reported_are_sent_and_freed(programs, snapshots):
    """Those of an image that lives stay; and what is freed is not kept here either."""
    read(snapshots)
    series_of_gone, times_of_gone = decode(snapshots.last_of_others({LIVING}), Counter())

    assert [key.pid for key, _ in series_of_gone.series] == [GONE[0]]
    assert len(times_of_gone.entries) == 1
    assert list(programs.aggregates) == [entry(LIVING)[0]]
    assert len(programs.times) == 1
    assert list(snapshots.last_of_others({LIVING})) == []


def test_nothing_is_sent_again_that_did_not_change(snapshots):
    """What was freed and comes again is new."""
    assert len(read(snapshots)) == 2
    assert read(snapshots) == []


def test_open_waits_are_booked_once_no_process_may_stand_still_for_us(programs, snapshots):
    """A stop whose record waits would be booked as another's; where records never end, it is so at last."""
    list(snapshots.times())
    assert programs.booked == 1

    programs.fill = 0.01
    booked = []
    for _ in range(8):
        list(snapshots.times())
        booked.append(programs.booked)
    assert booked == [1, 1, 1, 2, 2, 2, 2, 3]

    programs.fill = 0.0
    list(snapshots.times())
    assert programs.booked == 4


def test_who_kept_others_waiting_is_said_to_have_taken_what_was_added(programs, snapshots):
    """An entry has all since its process began, at every reading."""
    noted = []
    snapshots.culprits.note = lambda pid, time_ns: noted.append((pid, time_ns))
    for ended_ns in (400, 900, 900, 1_000):
        programs.times = dict([taken(LIVING, ended_ns)])
        read(snapshots)
    programs.times = dict([taken(LIVING, 1_300), taken(GONE, 70)])
    list(snapshots.last_times({LIVING, GONE}))

    assert noted == [(99, 400), (99, 500), (99, 100), (99, 300), (99, 70)]


def test_thresholds_go_with_their_series(programs, snapshots):
    """An image that ended has none in the kernel."""
    read(snapshots)
    snapshots.push_thresholds()
    assert {name[1] for name in programs.thresholds} == {LIVING[0], GONE[0]}
    list(snapshots.last_of_others({LIVING}))
    snapshots.push_thresholds()

    assert {name[1] for name in programs.thresholds} == {LIVING[0]}


def holder(stack, live_blocks, image=GONE):
    """A holder of one image, with its key."""
    pid, ktime_ns = image
    key = wire.HOLDER_KEY.build(program_ktime_ns=ktime_ns, stack=stack, pid=pid)
    return key, wire.HOLDER.build(live_bytes=512 * live_blocks, live_blocks=live_blocks)


def test_what_holds_one_block_is_freed_with_it(programs, snapshots):
    """Its last reading is sent; others stay, as the next block of their stack is theirs too."""
    often, once = holder(7, 0), holder(STACK_OF_ONE | 9, 0)
    programs.blocks.holders.update([often, once, holder(STACK_OF_ONE | 8, 1)])

    [sent] = snapshots.memory()

    assert wire.MEMORY_RECORD.named(sent)["count"] == 3
    assert programs.blocks.holders.keys() == {often[0], holder(STACK_OF_ONE | 8, 1)[0]}
    assert list(snapshots.memory()) == []


def test_holders_of_an_image_that_ended_are_sent_and_freed(programs, snapshots):
    """Those of others stay. Blocks are looked for only where a framework has reported any."""
    programs.blocks.holders.update([holder(7, 1), holder(7, 2, LIVING)])

    [sent] = snapshots.last_memory([GONE])
    assert programs.blocks.forgotten == []

    assert wire.MEMORY_RECORD.named(sent)["count"] == 1
    assert list(programs.blocks.holders) == [holder(7, 2, LIVING)[0]]


def test_what_only_frees_what_it_inherited_is_not_sent_but_freed(programs, snapshots):
    """A child whose parent has memory: its totals are 0."""
    pid, ktime_ns = GONE
    key = wire.DEVICE_KEY.build(program_ktime_ns=ktime_ns, pid=pid)
    programs.blocks.totals[key] = bytes(wire.MEMORY_TOTALS.size)

    assert list(snapshots.memory()) == []
    assert list(snapshots.last_memory([GONE])) == []
    assert programs.blocks.totals == {}
    assert programs.blocks.forgotten == [GONE]


def communicator(handle, image=GONE, **values):
    pid, ktime_ns = image
    key = wire.COMMUNICATOR_KEY.build(
        program_ktime_ns=ktime_ns, pid=pid, handle=handle, generation=1
    )
    return key, wire.COMMUNICATOR.build(made_ktime_ns=1, **values)


def test_a_communicator_is_sent_when_it_changes_and_freed_once_it_is_destroyed(programs, snapshots):
    """What was destroyed is said once, with all that was counted."""
    programs.communicators.update([communicator(7, called=3), communicator(8, called=4)])
    [sent] = snapshots.communicators()
    assert wire.MEMORY_RECORD.named(sent)["count"] == 2
    assert list(snapshots.communicators()) == []

    programs.communicators.update([communicator(8, called=5, flags=wire.COMMUNICATOR_DESTROYED)])
    [sent] = snapshots.communicators()

    assert wire.MEMORY_RECORD.named(sent)["count"] == 1
    assert list(programs.communicators) == [communicator(7)[0]]
    assert list(snapshots.communicators()) == []


def test_communicators_of_an_image_whose_end_was_not_reported_are_sent_and_freed(
    programs, snapshots
):
    """Those that live stay."""
    programs.communicators.update([communicator(7, called=3), communicator(7, LIVING)])
    list(snapshots.communicators())
    programs.communicators.update([communicator(7, called=4)])

    *_, sent = snapshots.last_of_others({LIVING})

    assert wire.MEMORY_RECORD.named(sent)["count"] == 1
    assert list(programs.communicators) == [communicator(7, LIVING)[0]]
