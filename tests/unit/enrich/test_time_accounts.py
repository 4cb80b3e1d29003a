"""The time account of a process, added up from what changed of it."""

from hypothesis import given
from hypothesis import strategies as st

from otel_gpu import wire
from otel_gpu.enrich.time_accounts import TimeAccounts
from otel_gpu.enrich.waits.kernel_waits import KernelWaits
from otel_gpu.enrich.waits.resource_table import ResourceTable
from otel_gpu.wire.events import Stack
from otel_gpu.wire.readings import TimesEntry, TimesKey
from tests.activities import image

TRAINER = image(42, 1)
PIPE, FUTEX = ("anon_pipe_read", "vfs_read"), ("futex_wait", "do_futex")
NOTHING = (0, 0, 0)

figures = st.tuples(*[st.integers(0, 9)] * 3)
# Stops, and those that the agent made: of these two what passed of one moves to the other.
flags = st.sampled_from([0, wire.STALL_STOPPED, wire.STALL_STOPPED | wire.STALL_AGENT])
names = st.sampled_from(["sh", "cc1"])
read = st.tuples(st.integers(0, 2), st.integers(0, 3), figures, names, flags)
learnt = st.tuples(st.integers(0, 2), st.sampled_from([PIPE, FUTEX]))


def entry_of(stack, who, numbers, comm, flags=0):
    key = TimesKey(1, 42, stack, -1, wire.STATE_BLOCKED, wire.CONTEXT_GAP, flags, who_pid=who)
    return TimesEntry(key, *numbers, who_comm=comm)


def shown(accounts):
    return sorted(accounts.times(TRAINER), key=repr)


@given(st.lists(st.one_of(st.lists(read, max_size=4), learnt), max_size=12))
def test_what_is_added_up_is_the_latest_of_all_entries(steps):
    """Entries that change, come, go, are called otherwise or get a reason leave the sums of those that are."""
    waits, resources = KernelWaits(), ResourceTable()
    accounts = TimeAccounts(waits, resources)
    latest = {}
    for step in steps:
        if isinstance(step, list):
            entries = [entry_of(*one) for one in step]
            accounts.take(entries)
            latest |= {one.key: one for one in entries}
        else:
            waits.learn(Stack(0, *step))
        afresh = TimeAccounts(waits, resources)
        afresh.take([one for one in latest.values() if one[1:4] != NOTHING])

        assert shown(accounts) == shown(afresh)


def test_what_did_not_change_is_the_same_object():
    """Who keeps a reading tells by that what is new in the next one."""
    accounts = TimeAccounts(KernelWaits(), ResourceTable())
    accounts.take([entry_of(0, 7, (1, 1, 1), "sh"), entry_of(0, 8, (1, 1, 1), "sh")])
    first = {time.wait.who.pid: time for time in accounts.times(TRAINER)}
    accounts.take([entry_of(0, 8, (2, 1, 1), "sh")])
    second = {time.wait.who.pid: time for time in accounts.times(TRAINER)}

    assert second[7] is first[7]
    assert (second[8] is first[8], second[8].time_ns) == (False, 2)
