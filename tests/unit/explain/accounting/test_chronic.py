"""Causes that take much of all time: incidents without any call that is slower than usual."""

import pytest

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import Culprit, Resource
from otel_gpu.enrich.known_work import ADVICE, WorkKind
from otel_gpu.enrich.thread_times import NO_WAIT
from otel_gpu.explain import rules
from otel_gpu.explain.accounting.chronic import find_chronic
from otel_gpu.explain.advice import LINES_ADVICE
from otel_gpu.explain.chains import stack_of_cause
from otel_gpu.explain.code_locations import CodeLocations
from otel_gpu.explain.explainer import Explainer
from otel_gpu.explain.settings import Settings
from otel_gpu.state.capture_state import Figures
from otel_gpu.state.thread_names import ThreadNames
from otel_gpu.wire.frames import Frame
from tests.activities import (
    APIS_BY_NAME,
    SECOND,
    T0,
    call_stack,
    calls,
    capture,
    ended,
    image,
    snapshot,
)
from tests.unit.explain.accounting.test_time_tree import place_of
from tests.unit.explain.streams import (
    MS,
    START,
    TRAINER,
    WORKER,
    account,
    explain,
    fork_by,
    in_ms,
    off_cpu,
    preempted,
    sampled,
    slow,
    slow_gap,
    stack_at,
    time_of,
    usual,
    usual_gap,
    woken_by,
)

GAP, SYNC, CALL = wire.CONTEXT_GAP, wire.CONTEXT_SYNCHRONIZE, wire.CONTEXT_CALL
ON_CPU, RUN_QUEUE, BLOCKED = wire.STATE_ON_CPU, wire.STATE_RUN_QUEUE, wire.STATE_BLOCKED
LOADER = Culprit(77, 79, "loader")
READER = Culprit(77, 77, "loader")
HOG = Culprit(900, 0, "hog")
FAR = Resource("tcp", "198.18.77.2:9000", "", "", is_remote=True)
FILE = Resource("file", "/var/tmp/checkpoint", "ext4", "/", is_remote=False)
LAUNCH = 1
CAUSES = 256


def row(state, context, time_ms, reason="", process=TRAINER, **wait):
    """One row of the account in which all waits have ended."""
    time = time_of(state, context, time_ms, reason, process)
    return time._replace(ended_ns=time.time_ns, wait=NO_WAIT._replace(**{"api": LAUNCH} | wait))


def of_loader(time_ms, end_state=ON_CPU, **wait):
    wait = {"who": LOADER, "end": READER, "end_state": end_state} | wait
    return row(BLOCKED, GAP, time_ms, "ipc", **wait)


def gpu(time_ms):
    return row(BLOCKED, SYNC, time_ms, "driver")


def rest(time_ms=100):
    """Enough of other time, which is nobody's fault."""
    return row(ON_CPU, CALL, time_ms)


def incidents_of(*rows, before=(), at_s=20, settings=None):
    """What a second in which the account grew by these rows makes."""
    nothing = [one._replace(time_ns=0, ended_ns=0, count=0) for one in rows]
    readings = [account(at_s - 1, *nothing), account(at_s, *rows)]
    _, explainer = explain(*before, *readings, settings=settings)
    return explainer.incidents()


def test_a_program_that_always_waits_for_its_loader_has_an_incident():
    """Nothing is slower than usual, and nine tenths of the time are lost."""
    (incident,) = incidents_of(of_loader(800), rest(), gpu(100))

    assert incident.chronic
    assert incident.processes == (TRAINER,)
    assert (incident.severity, incident.lost_ns, incident.effects) == ("high", 800 * MS, 0)
    (cause,) = incident.causes
    assert (cause.kind, cause.culprit, cause.share) == ("ipc", LOADER, 0.8)
    assert [(via.kind, via.time_ns, via.culprit) for via in cause.via] == [
        ("host_work", 800 * MS, READER)
    ]
    # On which lines the worker worked is not known: its advice would say no more.
    assert incident.advice == (rules.RULE_BY_KIND["ipc"].advice,)
    assert (incident.chains, incident.unexplained_ns) == ((), 0)


@pytest.mark.parametrize(
    ("time", "kind", "culprit", "severity"),
    [
        (row(RUN_QUEUE, GAP, 400, who=HOG), "run_queue", HOG, "high"),
        (row(BLOCKED, GAP, 400, "lock", who=LOADER, end_state=ON_CPU), "lock", LOADER, "high"),
        (row(BLOCKED, GAP, 400, "network", resource=FAR), "network", None, "high"),
        (row(BLOCKED, GAP, 400, "io", resource=FILE), "io", None, "high"),
        # Nobody kept it waiting: its own work and sleep are lost, and nobody is to be woken.
        (row(ON_CPU, GAP, 400), "host_work", None, "medium"),
        (row(BLOCKED, GAP, 400, "sleep"), "sleep", None, "medium"),
    ],
)
def test_each_cause_is_found_with_who_or_what_is_behind_it(time, kind, culprit, severity):
    """By state and waker, as counted."""
    (incident,) = incidents_of(time, rest(300))

    (cause,) = incident.causes
    assert (cause.kind, cause.culprit, cause.time_ns) == (kind, culprit, 400 * MS)
    assert cause.resource == time.wait.resource
    assert (incident.severity, incident.advice[0]) == (severity, rules.RULE_BY_KIND[kind].advice)


@pytest.mark.parametrize(
    "times",
    [
        # Bound by the device: what else the host does is done meanwhile.
        [gpu(600), row(ON_CPU, GAP, 200), row(BLOCKED, GAP, 100, "ipc", who=LOADER)],
        # It found no room in the queue: the device is behind.
        [row(BLOCKED, CALL, 500, "sleep"), row(ON_CPU, CALL, 300)],
        # Nothing was asked of it.
        [row(BLOCKED, GAP, 900, "ipc", who=Culprit(5, 0, "curl")), row(ON_CPU, GAP, 90)],
        # The loader waits for the device itself, or for somebody outside.
        [of_loader(500, BLOCKED, end_reason="driver"), rest(400)],
        [of_loader(500, BLOCKED, end_reason="ipc"), rest(400)],
        # Who held the lock is not known.
        [row(BLOCKED, GAP, 500, "lock"), rest(400)],
        # A twentieth is not reached.
        [of_loader(49), rest(951)],
        # Too little was seen.
        [of_loader(50), rest(40)],
    ],
)
def test_a_healthy_program_has_none(times):
    """Waiting for the device is not lost, and idle is not starved."""
    assert incidents_of(*times) == []


def test_an_account_of_states_only_has_none():
    """Without who ended the waits, what was known before is what is known."""
    assert incidents_of(time_of(BLOCKED, GAP, 800, "ipc"), time_of(ON_CPU, GAP, 200)) == []


def test_what_keeps_a_thread_from_going_on_when_the_device_is_done_is_lost():
    """Also in a process that mostly waits for its device; after a launch the device works meanwhile."""
    done = APIS_BY_NAME["cudaStreamSynchronize"].number
    late = row(RUN_QUEUE, SYNC, 100, who=HOG, api=done)
    later = row(RUN_QUEUE, GAP, 100, who=HOG, api=done)
    meanwhile = row(RUN_QUEUE, GAP, 200, who=HOG, api=LAUNCH)

    (incident,) = incidents_of(gpu(600), late, later, meanwhile)

    assert (incident.causes[0].culprit, incident.lost_ns) == (HOG, 200 * MS)


def test_own_work_is_low_while_it_is_not_most_of_the_time():
    """Every program works; what bounds it is worth a look, and who holds it up comes first."""
    severities = [
        incident.severity
        for ms in (400, 600)
        for incident in incidents_of(row(ON_CPU, GAP, ms), rest(500))
    ]

    assert severities == ["low", "medium"]
    beside = incidents_of(row(ON_CPU, GAP, 900), row(RUN_QUEUE, GAP, 90, who=HOG))
    assert [one.severity for one in beside] == ["medium", "low"]
    assert [one.causes[0].kind for one in beside] == ["run_queue", "host_work"]


def test_the_first_call_of_an_api_is_warm_up():
    """It reads libraries from a disk; the ones after it do not."""
    name = "cudaLaunchKernel"
    lazy = row(BLOCKED, CALL, 300, "page_fault"), rest(700)

    first = snapshot(19.5, calls(TRAINER, name, [310 * MS]))
    assert (
        incidents_of(*lazy, before=[first], settings=Settings(chronic_window_ns=99 * SECOND)) == []
    )
    known = [snapshot(18, calls(TRAINER, name, [MS])), account(18.5, row(ON_CPU, CALL, 0))]
    again = snapshot(19.5, calls(TRAINER, name, [MS, 300 * MS]))
    settings = Settings(chronic_window_ns=SECOND)
    found = incidents_of(*lazy, before=[*known, again], settings=settings)
    assert [incident.causes[0].kind for incident in found] == ["page_fault"]


def test_an_incident_says_where():
    """The line of the wait that was seen, or of the work."""
    wait = off_cpu(0, 30, reason="ipc", stack=place_of("get_batch"), waker_pid=77, waker_tid=79)

    (incident,) = incidents_of(of_loader(800), rest(), before=[wait], at_s=START // SECOND + 2)

    (evidence,) = incident.causes[0].evidence
    assert (evidence.kind, evidence.stack.place.function) == ("account", "get_batch")


def test_an_incident_names_the_lines_of_its_work():
    """Of the thread that is waited for, and of its own; advice is of what the work was."""
    collect = call_stack(
        0x6C,
        (
            Frame("native", "gc_collect_main", module="python3.11"),
            Frame("cpython", "step", "/app/train.py", 88),
        ),
    )
    reading = {"at_s": START // SECOND + 2}
    augment = sampled({stack_at("slow_augment"): 3}, 0, process=WORKER, context=wire.CONTEXT_OTHER)
    before = [*augment, *sampled({collect: 9, stack_at("g"): 1}, 10)]

    (waits,) = incidents_of(of_loader(800), rest(), before=before, **reading)
    (own,) = incidents_of(row(ON_CPU, GAP, 600), rest(300), before=before, **reading)

    (via,) = waits.causes[0].via
    assert via.lines.first.where == ("slow_augment", "/app/pictures.py", 7)
    assert (via.lines.samples, waits.causes[0].lines.samples) == (3, 0)
    assert (own.causes[0].lines.first.where.line, own.causes[0].lines.work) == (88, "gc")
    assert stack_of_cause(own.causes[0]) is collect
    assert own.advice == (ADVICE[WorkKind.GC],)
    assert waits.advice == (LINES_ADVICE, rules.RULE_BY_KIND["ipc"].advice)


PIPE = Resource("pipe", "pipe:[4711]", "", "", is_remote=False)
SECOND_LOADER = LOADER._replace(tid=80)


@pytest.mark.parametrize(
    "waits",
    [
        [of_loader(400), of_loader(400, resource=PIPE)],
        [of_loader(400), of_loader(400, who=SECOND_LOADER)],
        # Thirty that are each waited for a little are one cause.
        [of_loader(25, who=Culprit(100 + n, 100 + n, "worker")) for n in range(30)],
    ],
)
def test_a_sample_counts_once_however_often_its_thread_was_waited_for(waits):
    """By several threads, for several things, or at the end of several waits."""
    samples = {stack_at("decode"): 3, stack_at("crop"): 1}
    before = [
        *sampled(samples, 0, process=WORKER, context=wire.CONTEXT_OTHER),
        *sampled({stack_at("other"): 8}, 0, process=WORKER, tid=78, context=wire.CONTEXT_OTHER),
    ]

    (incident,) = incidents_of(*waits, rest(200), before=before, at_s=START // SECOND + 2)

    lines = incident.causes[0].via[0].lines
    assert lines.samples == 4
    assert [(line.where.function, line.samples) for line in lines.each] == [
        ("decode", 3),
        ("crop", 1),
    ]


def test_a_sample_of_several_threads_of_a_process_counts_once():
    """Two of its threads ended waits, and each was at work on lines of its own."""
    other = Culprit(77, 78, "loader")
    before = [
        *sampled({stack_at("decode"): 3}, 0, process=WORKER, context=wire.CONTEXT_OTHER),
        *sampled({stack_at("other"): 8}, 0, process=WORKER, tid=78, context=wire.CONTEXT_OTHER),
    ]
    waits = [
        of_loader(400, end=end, resource=pipe) for end in (READER, other) for pipe in (None, PIPE)
    ]

    (incident,) = incidents_of(*waits, rest(200), before=before, at_s=START // SECOND + 2)

    (via,) = incident.causes[0].via
    assert (via.lines.samples, via.lines.first.where.function) == (11, "other")


def test_a_sample_counts_once_in_an_incident_that_goes_on():
    """In a window without any, what was seen in the one before is no news."""
    samples = sampled({stack_at("decode"): 3}, 5_000, process=WORKER, context=wire.CONTEXT_OTHER)
    readings = [
        account(99 + second, of_loader(800 * second), rest(200 * second)) for second in range(30)
    ]

    settings = Settings(chronic_window_ns=10 * SECOND)
    _, explainer = explain(*readings[:5], *samples, *readings[5:], settings=settings)

    (incident,) = explainer.incidents()
    (via,) = incident.causes[0].via
    assert (via.time_ns, via.lines.samples) == (29 * 800 * MS, 3)


def test_who_waited_for_a_cpu_itself_had_none_to_work_with():
    """The one that is waited for: what it works on else is not who had the CPU."""
    samples = sampled({stack_at("spin"): 4}, 0, process=WORKER, context=wire.CONTEXT_OTHER)

    (incident,) = incidents_of(
        of_loader(800, RUN_QUEUE), rest(), before=samples, at_s=START // SECOND + 2
    )

    (via,) = incident.causes[0].via
    assert (via.kind, via.lines.samples) == ("run_queue", 0)


def test_who_had_the_cpu_is_named_with_its_line_if_it_is_watched():
    """Whatever it did with it, in CUDA calls or not; the account names none of its threads."""
    watched = Culprit(77, 0, "worker")
    samples = sampled({stack_at("spin"): 4}, 0, process=WORKER, context=wire.CONTEXT_CALL)

    (incident,) = incidents_of(
        row(RUN_QUEUE, GAP, 400, who=watched), rest(300), before=samples, at_s=START // SECOND + 2
    )

    assert incident.causes[0].lines.first.where.function == "spin"


def steps(count, lost_ms, start_s=100):
    """Calls that a hog slowed down, a tenth of a second apart."""
    for number in range(count):
        start = round((start_s + number / 10) * SECOND)
        hog = {"culprit_pid": 900, "culprit_tid": 901, "culprit_comm": "hog"}
        yield preempted(0, lost_ms, start=start, **hog)
        yield slow(duration_ms=lost_ms + 1, start=start, run_queue_ns=lost_ms * MS)


def hogged(queue_ms):
    """The account of two seconds in which the hog had the CPU so long."""
    both = row(RUN_QUEUE, SYNC, queue_ms, who=HOG), rest(2000 - queue_ms)
    return [
        account(99.9, *(one._replace(time_ns=0, ended_ns=0) for one in both)),
        account(102, *both),
    ]


def test_what_effects_tell_of_is_not_told_twice():
    """Ten calls lost all of the time that the account has: that is sudden, and not chronic."""
    _, explainer = explain(usual(), *steps(10, 60), *hogged(600))

    (incident,) = explainer.incidents()
    assert not incident.chronic
    assert (incident.lost_ns, incident.causes[0].kind) == (600 * MS, "preemption")


def test_what_is_left_makes_the_acute_incident_a_chronic_one():
    """Every call is late and some are very: one incident, all of its time, and examples."""
    _, explainer = explain(usual(), *steps(10, 60), *hogged(900))

    (incident,) = explainer.incidents()
    assert incident.chronic
    assert (incident.lost_ns, incident.effects, len(incident.chains)) == (900 * MS, 10, 10)
    leading, device = incident.causes
    assert (leading.kind, leading.time_ns, leading.culprit.pid) == ("run_queue", 900 * MS, 900)
    assert device.kind == "gpu_wait"


def test_what_is_slow_time_and_again_is_chronic():
    """Every gap before a copy, say, which no histogram has: each of them is slow by itself."""
    gaps = [
        activity
        for number in range(20)
        for start in [START + number * SECOND // 10]
        for activity in (
            off_cpu(0, 60, reason="ipc", start=start, **woken_by(WORKER)),
            slow_gap(duration_ms=61, start=start, blocked_ns=60 * MS),
        )
    ]
    rows = of_loader(1200), rest(800)
    nothing = [one._replace(time_ns=0, ended_ns=0, count=0) for one in rows]
    readings = account(99.9, *nothing), account(102.5, *rows)

    known = sampled({stack_at("load"): 1}, 0, process=WORKER)
    _, explainer = explain(readings[0], *known, *gaps, readings[1])

    (incident,) = explainer.incidents()
    assert incident.chronic
    # With what the effects say of the program's own work.
    assert (incident.lost_ns, incident.effects) == (20 * 61 * MS, 20)
    assert (incident.causes[0].kind, incident.causes[0].time_ns) == ("ipc", 1200 * MS)


def test_what_effects_know_better_is_not_told_by_another_name():
    """A quota kept the thread from its CPU; the account can only say who had it then."""
    marked = [
        one._replace(event=one.event._replace(flags=wire.STALL_THROTTLED))
        if hasattr(one, "runnable_unix_ns")
        else one
        for one in steps(10, 60)
    ]
    _, explainer = explain(usual(), *marked, *hogged(620))

    assert [incident.causes[0].kind for incident in explainer.incidents()] == ["cpu_quota"]


def test_a_capture_that_goes_on_tells_of_each_stretch():
    """Whoever exports incidents waits for no end of a job that is always starved."""
    settings = Settings(chronic_window_ns=10 * SECOND)
    explainer = Explainer(settings, keeps_closed=False)
    explainer.push(capture())
    found = []
    for second in range(41):
        for activity in (
            usual(at_s=100 + second),
            account(100 + second, of_loader(800 * second), rest(200 * second)),
        ):
            explainer.push(activity)
        found += explainer.closed_incidents()

    assert len(found) == 3
    assert {incident.lost_ns for incident in found[1:]} == {8 * SECOND}
    assert all(one.chronic and one.severity == "high" for one in found)
    spans = [(one.start_unix_ns, one.end_unix_ns) for one in found]
    assert spans[1] == (spans[0][1], spans[2][0])
    assert spans[1][1] - spans[1][0] == 10 * SECOND
    explainer.close()
    (last,) = explainer.closed_incidents()
    assert last.start_unix_ns == spans[2][1]


def test_a_report_of_a_whole_capture_has_one_for_all_stretches():
    """A reader wants to know it once."""
    readings = [
        account(100 + second, of_loader(800 * second), rest(200 * second)) for second in range(41)
    ]

    _, explainer = explain(*readings)

    (incident,) = explainer.incidents()
    assert incident.lost_ns == 32 * SECOND
    assert incident.causes[0].share == pytest.approx(0.8)


def test_a_process_that_ends_within_a_stretch_is_looked_at():
    """Its account goes soon after it, and what it says is told."""
    brief = image(55, 98 * SECOND, name="brief")
    rows = [
        row(BLOCKED, GAP, 900, "ipc", process=brief, who=LOADER, end_state=ON_CPU),
        row(ON_CPU, CALL, 100, process=brief),
    ]
    end = [ended(brief, 100), *(usual(at_s=101 + second) for second in range(9))]

    _, explainer = explain(account(99.9, *rows), *end)

    (incident,) = explainer.incidents()
    assert incident.process is brief
    assert incident.end_unix_ns <= T0 + 101 * SECOND


def test_gaps_that_are_always_long_are_no_effects_and_still_found():
    """As in every step: the median is the wait itself."""
    gaps = [usual_gap(duration_ns=20 * MS)]

    (incident,) = incidents_of(of_loader(800), rest(), before=gaps)

    assert in_ms(incident.causes) == [("ipc", 800)]


def test_a_fork_is_not_its_own_work_once_more():
    """The account knows that a thread was on a CPU; that it forked there, its effects do."""
    forks = []
    for number in range(10):
        start = START + number * SECOND // 10
        forks += [fork_by(42, 1, 60, start=start), slow_gap(61, start=start)]
    work = row(ON_CPU, GAP, 900), rest(1100)
    readings = [account(99.9, *(one._replace(time_ns=0, ended_ns=0) for one in work))]

    _, explainer = explain(usual_gap(), *forks, *readings, account(102, *work))

    told = {
        one.causes[0].kind: (one.causes[0].time_ns, one.chronic) for one in explainer.incidents()
    }
    assert told == {"fork": (600 * MS, False), "host_work": (300 * MS, True)}


def test_many_who_each_take_a_little_are_one_cause():
    """Of thirty workers none is waited for much, and the program waits all the time."""
    workers = [
        row(
            BLOCKED,
            GAP,
            25,
            "ipc",
            who=(one := Culprit(100 + n, 100 + n, "worker")),
            end=one,
            end_state=ON_CPU,
        )
        for n in range(30)
    ]

    (incident,) = incidents_of(*workers, rest(250))

    (cause,) = incident.causes
    assert (cause.kind, cause.time_ns, cause.share) == ("ipc", 750 * MS, pytest.approx(0.75))
    assert cause.culprit.comm == "worker"
    assert (cause.via[0].kind, sum(via.time_ns for via in cause.via)) == ("host_work", 750 * MS)
    assert sum(via.share for via in cause.via) == pytest.approx(0.75)


def test_none_of_many_who_had_the_cpu_is_to_blame_for_all():
    """A build starts compilers by the hundred; what effects tell of them is not told again."""
    hogs = [row(RUN_QUEUE, GAP, 10, who=Culprit(900 + n, 0, "cc1")) for n in range(40)]

    (incident,) = incidents_of(*hogs, rest(600))

    (cause,) = incident.causes
    assert (cause.kind, cause.culprit, cause.time_ns) == ("run_queue", None, 400 * MS)
    others = [row(RUN_QUEUE, SYNC, 60, who=Culprit(900 + n, 0, "hog")) for n in range(10)]
    both = [*others, rest(1400)]
    begin = account(99.9, *(one._replace(time_ns=0, ended_ns=0) for one in both))
    acute = [
        one._replace(event=one.event._replace(culprit_pid=900 + number // 2))
        if hasattr(one, "runnable_unix_ns")
        else one
        for number, one in enumerate(steps(10, 60))
    ]
    _, explainer = explain(usual(), *acute, begin, account(102, *both))
    assert not any(incident.chronic for incident in explainer.incidents())


def test_hundreds_of_neighbours_that_matter_to_nobody_hide_no_cause_and_are_not_looked_for():
    """Of more neighbours than causes are kept, the time is too little; the rest is told as without them."""
    places = CodeLocations(8)
    loader = [of_loader(800), rest(100)]
    neighbours = [
        row(RUN_QUEUE, GAP, 1, who=Culprit(5000 + n, 0, f"job-{n}")) for n in range(CAUSES + 44)
    ]

    def found(rows, names):
        settings = Settings(chronic_share=0.4)
        figures = Figures(TRAINER, (), tuple(rows))
        return list(find_chronic(figures, START, START + SECOND, settings, places, None, names))

    class Asked(ThreadNames):
        def named(self, culprit):
            asked.append(culprit.pid)
            return super().named(culprit)

    asked = []
    (alone,) = found(loader, ThreadNames())
    (among,) = found([*loader, *neighbours], Asked())

    assert (among.cause.kind, among.cause.time_ns, among.pids) == ("ipc", 800 * MS, {77})
    assert among.cause.culprit == alone.cause.culprit
    assert set(asked) == {77}
