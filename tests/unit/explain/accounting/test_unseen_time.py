"""What no interval shows is what the time account says of it, and unexplained is what nobody measured."""

from hypothesis import given
from hypothesis import strategies as st

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import Culprit, Resource
from otel_gpu.enrich.thread_times import NO_WAIT
from otel_gpu.explain.accounting.unseen_time import _shares
from otel_gpu.explain.accounting.waits import Waited
from otel_gpu.explain.chains import Evidence
from otel_gpu.explain.intervals import CauseInterval
from tests.unit.explain.streams import (
    MS,
    TRAINER,
    WORKER,
    account,
    chain_of,
    in_ms,
    off_cpu,
    sampled,
    slow_gap,
    stack_at,
    time_of,
    usual_gap,
    woken_by,
)

BLOCKED, ON_CPU, QUEUED, NONE = (
    wire.STATE_BLOCKED,
    wire.STATE_ON_CPU,
    wire.STATE_RUN_QUEUE,
    wire.STATE_NONE,
)
GAP, SYNC, OTHER = wire.CONTEXT_GAP, wire.CONTEXT_SYNCHRONIZE, wire.CONTEXT_OTHER
SERVER = Culprit(WORKER.pid, 79, WORKER.comm)
FEEDER = Culprit(WORKER.pid, 78, WORKER.comm)
MAKER = Culprit(WORKER.pid, WORKER.pid, WORKER.comm)
SOCKET = Resource("unix", "/tmp/listener", "", "", is_remote=False)


def waited(time_ms, reason="ipc", context=GAP, process=TRAINER, **wait):
    """A row of the account: so much of such waits ended."""
    time = time_of(BLOCKED, context, time_ms, reason, process)
    return time._replace(ended_ns=time.time_ns, wait=NO_WAIT._replace(**wait))


def read(*times, before=()):
    """The account before the gap and after it; the other process is watched, too."""
    times = (*times, waited(1, "sleep", OTHER, WORKER))
    nothing = [time._replace(time_ns=0, ended_ns=0) for time in times]
    return account(99, *(before or nothing)), account(101, *times)


def below(cause):
    return in_ms(cause.via)


def test_waits_that_were_not_kept_are_what_the_account_has_beside_those_that_were():
    """A gap of many waits for two threads: the longest are kept, and the account has all of them."""
    before, after = read(
        waited(50, who=SERVER, end=SERVER, end_state=ON_CPU, resource=SOCKET),
        waited(30, who=FEEDER, end=FEEDER, end_state=ON_CPU),
        waited(10, reason="io"),
        # What it does in calls is no part of a gap.
        waited(70, reason="lock", context=SYNC, who=FEEDER),
    )
    kept = [
        *(off_cpu(n * 5, 3, reason="queue", **woken_by(WORKER, 79)) for n in range(8)),
        *(off_cpu(50 + n * 5, 2, reason="queue", **woken_by(WORKER, 78)) for n in range(8)),
    ]

    chain = chain_of(usual_gap(), before, *kept, slow_gap(blocked_ns=90 * MS), after)

    found = {(one.kind, one.culprit and one.culprit.tid): one.time_ns / MS for one in chain.causes}
    assert found == {("ipc", 79): 50, ("ipc", 78): 30, ("io", None): 10, ("host_work", None): 10}
    assert chain.unexplained_ns == 0
    assert [below(one) for one in chain.causes if one.kind == "ipc"] == [
        [("host_work", 50)],
        [("host_work", 30)],
    ]


def test_what_the_account_does_not_have_stays_unexplained():
    """A reading that names other waits only, of less time, explains no more than that."""
    before, after = read(waited(10, reason="io"), waited(5, reason="unknown"))
    kept = [
        off_cpu(0, 20, reason="queue", **woken_by(WORKER, 79)),
        off_cpu(30, 20, reason="lock", **woken_by(TRAINER, 43)),
    ]

    chain = chain_of(usual_gap(), before, *kept, slow_gap(blocked_ns=90 * MS), after)

    assert ("io", 10) in in_ms(chain.causes)
    assert chain.unexplained_ns == 40 * MS


def test_whom_it_waited_for_is_followed_by_the_account_where_its_own_waits_were_too_short():
    """A thread that hands on what another one makes: neither was ever off the CPU for long."""
    before, after = read(
        waited(60, who=SERVER, end=MAKER, end_state=ON_CPU),
        waited(20, who=SERVER, end=SERVER, end_state=QUEUED),
        waited(15, who=SERVER, end=MAKER, end_state=BLOCKED, end_reason="io"),
        # Before it was followed.
        waited(5, who=SERVER, end_state=NONE),
    )
    chain = chain_of(
        usual_gap(),
        before,
        *sampled({stack_at("load"): 6}, 1, process=WORKER, context=OTHER),
        off_cpu(0, 100, reason="queue", **woken_by(WORKER, 79)),
        slow_gap(blocked_ns=100 * MS),
        after,
    )

    (ipc,) = chain.causes
    assert below(ipc) == [("host_work", 60), ("run_queue", 20), ("io", 15), ("unexplained", 5)]
    work, queued, io, rest = ipc.via
    assert (work.culprit, work.lines.first.where.function) == (MAKER, "load")
    assert (queued.culprit, io.culprit, rest.culprit) == (None, MAKER, None)


def test_a_reading_of_more_than_the_gap_has_its_shares():
    """Between two readings there may be many gaps: each is like all of them."""
    before, after = read(
        waited(600, who=SERVER, end=MAKER, end_state=ON_CPU),
        waited(200, who=SERVER, end=SERVER, end_state=QUEUED),
        waited(200, who=FEEDER, end=FEEDER, end_state=ON_CPU),
    )
    chain = chain_of(
        usual_gap(),
        before,
        off_cpu(0, 80, reason="queue", **woken_by(WORKER, 79)),
        slow_gap(blocked_ns=80 * MS),
        after,
    )

    ipc, work = chain.causes
    assert below(ipc) == [("host_work", 60), ("run_queue", 20)]
    assert (work.kind, work.time_ns) == ("host_work", 20 * MS)


def test_what_was_seen_is_not_told_once_more():
    """Of the thread that it waited for, and of the one behind that, the account has the same time."""
    before, after = read(
        waited(70, who=SERVER, end=MAKER, end_state=ON_CPU),
        waited(30, who=SERVER, end=SERVER, end_state=BLOCKED, end_reason="io"),
        waited(70, "lock", OTHER, WORKER, who=MAKER, end=MAKER, end_state=ON_CPU),
    )
    chain = chain_of(
        usual_gap(),
        before,
        off_cpu(0, 60, process=WORKER, tid=79, reason="lock", **woken_by(WORKER)),
        off_cpu(65, 30, process=WORKER, tid=79, reason="io"),
        off_cpu(0, 100, reason="queue", **woken_by(WORKER, 79)),
        slow_gap(blocked_ns=100 * MS),
        after,
    )

    (ipc,) = chain.causes
    assert below(ipc) == [("lock", 60), ("io", 30), ("host_work", 10)]
    assert below(ipc.via[0]) == [("host_work", 60)]


_KINDS = st.sampled_from(["ipc", "host_work", "run_queue", "io", "unexplained"])
_WHO = st.sampled_from([None, SERVER, MAKER])
_TIMES = st.integers(0, 1 << 40)
_SPAN = Evidence("gap", "gap", 0, 1)


@given(
    st.lists(st.builds(Waited, _KINDS, _WHO, st.none(), _TIMES), max_size=6),
    st.lists(st.builds(CauseInterval, _KINDS, _TIMES, _WHO, st.just(_SPAN)), max_size=6),
    _TIMES,
    st.sampled_from([None, SERVER]),
)
def test_no_more_is_shared_out_than_is_wanted_or_known(parts, known, wanted_ns, other):
    shares = list(_shares(parts, known, wanted_ns, other))

    assert sum(time_ns for _, time_ns in shares) <= wanted_ns
    assert all(0 < time_ns <= part.time_ns for part, time_ns in shares)
    assert all(part.kind != "unexplained" for part, _ in shares)
