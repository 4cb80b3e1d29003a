"""A report of activities: what the window and the process filter leave of them."""

import pytest

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import DeviceIdentity
from otel_gpu.enrich.thread_times import NO_WAIT
from otel_gpu.explain.accounting.verdicts import STATES
from otel_gpu.explain.explainer import Explainer
from otel_gpu.explain.kinds import TimeClass
from otel_gpu.report import chains as chain_rows
from otel_gpu.report import collector as module
from otel_gpu.report.collector import Collector
from otel_gpu.report.document import Window
from otel_gpu.state import capture_state as ledger_module
from tests.activities import (
    SECOND,
    T0,
    aggregate,
    call,
    calls,
    capture,
    counters,
    ended,
    image,
    probes,
    replaced,
    series,
    snapshot,
    status,
)
from tests.unit.report.samples import (
    BLOCKED_IN_GAP,
    HOG,
    MS,
    ON_CPU_WAITING,
    RUN_QUEUE_IN_GAP,
    WORKER,
    FakeExplainer,
    feeding,
    incident,
    preempted,
    times,
    verdict,
)

TRAINER, OTHER = image(42, 1), image(77, 1, name="server")
US = 1_000


def at(seconds):
    return T0 + round(seconds * SECOND)


def report_of(*activities, explainer=None, notes=(), **kwargs):
    collector = Collector(explainer or FakeExplainer(), **kwargs)
    for activity in activities:
        collector.observe(activity)
    return collector.finish("a.otelgpu", notes)


def test_calls_of_all_results_and_directions_make_one_row():
    """A reader asks how often cudaMemcpy was called, not under which key it was counted."""
    report = report_of(
        capture(),
        snapshot(
            1,
            calls(TRAINER, "cudaMemcpy", [10 * US] * 98, copy_kind=1, size_bytes=4096),
            calls(TRAINER, "cudaMemcpy", [90 * US], copy_kind=2, size_bytes=10),
            calls(TRAINER, "cudaMemcpy", [50 * US], copy_kind=1, status=700),
        ),
    )

    (row,) = report.apis
    assert (row.process, row.api, row.layer) == (TRAINER, "cudaMemcpy", "runtime")
    assert (row.calls, row.errors, row.sum_ns, row.max_ns) == (100, 1, 1_120 * US, 90 * US)
    assert row.size_bytes == 4106
    assert row.p50_ns == pytest.approx(10 * US, rel=0.091)
    assert row.p99_ns == pytest.approx(50 * US, rel=0.091)


def test_a_window_counts_what_was_added_in_it():
    """Counters go on from before the window; what they said then does not belong to it."""
    report = report_of(
        capture(),
        snapshot(1, calls(TRAINER, "cudaFree", [900 * US, 10 * US])),
        snapshot(2, calls(TRAINER, "cudaFree", [900 * US, 10 * US, 20 * US])),
        snapshot(3, calls(TRAINER, "cudaFree", [900 * US, 10 * US, 20 * US, 40 * US])),
        window=Window(at(1.5), at(2)),
    )

    (row,) = report.apis
    assert (row.calls, row.sum_ns) == (1, 20 * US)
    assert row.max_ns == pytest.approx(20 * US, rel=0.091)
    assert (report.start_unix_ns, report.end_unix_ns) == (at(1.5), at(2))


def test_the_longest_call_of_a_window_is_exact_when_it_is_the_longest_of_all():
    """A maximum that grew within the window is from the window."""
    report = report_of(
        capture(),
        snapshot(1, calls(TRAINER, "cudaFree", [10 * US])),
        snapshot(2, calls(TRAINER, "cudaFree", [10 * US, 777_777])),
        window=Window(start_unix_ns=at(1)),
    )

    assert [(row.calls, row.max_ns) for row in report.apis] == [(1, 777_777)]


def test_a_process_whose_names_became_known_later_is_one_process():
    """Enrichment replaces an image when it learns more; that doubles no count."""
    named = image(42, 1, name="better")
    report = report_of(
        capture(),
        snapshot(1, calls(TRAINER, "cudaFree", [US])),
        snapshot(2, calls(named, "cudaFree", [US, US])),
    )

    assert [(row.process, row.calls) for row in report.apis] == [(named, 2)]
    assert report.programs == (named,)


def test_rows_are_in_order_of_total_time():
    """Where the time went is what a reader looks for first."""
    report = report_of(
        capture(),
        snapshot(
            1,
            calls(TRAINER, "cudaLaunchKernel", [4 * US] * 10),
            calls(OTHER, "cudaStreamSynchronize", [300 * US]),
            calls(TRAINER, "cudaMalloc", [60 * US]),
        ),
    )

    assert [row.api for row in report.apis] == [
        "cudaStreamSynchronize",
        "cudaMalloc",
        "cudaLaunchKernel",
    ]
    assert report.programs == (TRAINER, OTHER)


def test_what_a_program_measured_by_events_is_beside_its_calls():
    """Of each device by itself, and never among the durations of calls."""
    first, second = DeviceIdentity(0, None, None), DeviceIdentity(1, None, None)
    elapsed = [
        series(TRAINER, wire.METRIC_ELAPSED_TIME, aggregate(times_ns), device=device)
        for device, times_ns in ((second, [7 * MS]), (None, [5 * US]), (first, [3 * MS, 4 * MS]))
    ]
    asked = calls(TRAINER, "cudaEventElapsedTime", [2 * US] * 4)
    report = report_of(capture(), snapshot(1, asked, *elapsed), snapshot(2, *elapsed))

    assert [(row.device, row.times, row.max_ns, row.sum_ns) for row in report.event_times] == [
        (None, 1, 5 * US, 5 * US),
        (0, 2, 4 * MS, 7 * MS),
        (1, 1, 7 * MS, 7 * MS),
    ]
    assert 3 * MS <= report.event_times[1].p50_ns <= report.event_times[1].p99_ns <= 4 * MS
    assert [(row.api, row.calls, row.sum_ns) for row in report.apis] == [
        ("cudaEventElapsedTime", 4, 8 * US)
    ]
    assert report.of_process(OTHER).event_times == ()


def test_memory_is_allocations_against_frees():
    """Only what succeeded, and the driver's call inside a runtime call is not counted again."""
    report = report_of(
        capture(),
        snapshot(
            1,
            calls(TRAINER, "cudaMalloc", [US] * 3, size_bytes=3_000),
            calls(TRAINER, "cudaMalloc", [US], status=2),
            calls(TRAINER, "cuMemAlloc", [US] * 3, nested=1, size_bytes=3_000),
            calls(TRAINER, "cudaFree", [US] * 2, size_bytes=2_000),
        ),
    )

    assert [row[1:] for row in report.balances] == [(3, 3_000, 2, 2_000)]


def test_the_explainer_sees_everything_and_the_window_tells_a_part():
    """What was usual before the window is needed in it, but only its own effects are told."""
    before, inside = preempted(TRAINER, 1 * SECOND, "a"), preempted(TRAINER, 5 * SECOND, "b")
    explainer = FakeExplainer(planned={2: [before, inside]}, incidents=[incident(before, inside)])
    launch = call(TRAINER, "cudaLaunchKernel", SECOND, 10 * MS)

    report = report_of(capture(), launch, explainer=explainer, window=Window(at(4), at(6)))

    assert launch in explainer.pushed
    assert [chain.id for chain in report.chains] == ["b"]
    (told,) = report.incidents
    assert [chain.id for chain in told.chains] == ["b"]
    assert (told.effects, told.lost_ns) == (1, 8 * MS)
    assert (told.start_unix_ns, told.end_unix_ns) == (at(5), at(5.01))
    assert [(cause.kind, cause.time_ns, cause.share) for cause in told.causes] == [
        ("preemption", 7 * MS, 0.7),
        ("ipc", MS, 0.1),
    ]


def test_an_incident_outside_of_the_window_is_not_told():
    """An incident of yesterday does not explain today."""
    chain = preempted(TRAINER, 1 * SECOND)
    explainer = FakeExplainer(late=[chain], incidents=[incident(chain)])

    report = report_of(capture(), explainer=explainer, window=Window(start_unix_ns=at(2)))

    assert (report.chains, report.incidents, report.culprit_times) == ((), (), ())


def test_only_the_processes_that_were_asked_for_are_told():
    """Counts, chains, verdicts and times of others are left out; culprits are not."""
    mine, foreign = preempted(TRAINER, SECOND, "a"), preempted(OTHER, SECOND, "b")
    explainer = FakeExplainer(
        late=[mine, foreign],
        incidents=[incident(mine, name="i1"), incident(foreign, name="i2")],
    )

    report = report_of(
        capture(),
        snapshot(1, calls(TRAINER, "cudaFree", [US]), calls(OTHER, "cudaFree", [US])),
        feeding(1, OTHER),
        times(1, TRAINER, (*ON_CPU_WAITING, 250, 1)),
        explainer=explainer,
        pids=[42],
    )

    assert report.programs == (TRAINER,)
    assert [row.process for row in report.apis] == [TRAINER]
    assert [chain.id for chain in report.chains] == ["a"]
    assert [(told.effects, told.chains) for told in report.incidents] == [(1, (mine,))]
    assert [told.process for told in report.judged] == [TRAINER]
    assert report.off_cpu == ()
    assert {blame.culprit for blame in report.culprit_times} == {HOG, WORKER}


def test_incidents_are_in_order_of_lost_time():
    """The one that cost most is read first."""
    small, large = preempted(TRAINER, SECOND, "a"), preempted(TRAINER, 2 * SECOND, "b")
    explainer = FakeExplainer(
        late=[small, large],
        incidents=[
            incident(small, name="small")._replace(lost_ns=1),
            incident(large, name="large")._replace(lost_ns=2),
        ],
    )

    report = report_of(capture(), explainer=explainer)

    assert [told.id for told in report.incidents] == ["large", "small"]


def test_culprits_are_added_up_over_all_effects():
    """Who is stealing the CPU is a question about a whole capture, hops included."""
    explainer = FakeExplainer(
        late=[preempted(TRAINER, SECOND, "a"), preempted(TRAINER, 2 * SECOND, "b")]
    )

    report = report_of(capture(), explainer=explainer)

    assert [row[1:] for row in report.culprit_times] == [
        (HOG, "preemption", 14 * MS, 2),
        (WORKER, "ipc", 2 * MS, 2),
        (HOG, "run_queue", 1 * MS, 2),
    ]


def test_the_time_account_of_a_window_is_what_was_added():
    """Off-CPU time is cumulative too, and so is what a verdict is about."""
    report = report_of(
        capture(),
        times(1, TRAINER, (*RUN_QUEUE_IN_GAP, 100, 10), (*BLOCKED_IN_GAP, 50, 5)),
        times(2, TRAINER, (*RUN_QUEUE_IN_GAP, 130, 13), (*BLOCKED_IN_GAP, 450, 6)),
        times(3, TRAINER, (*RUN_QUEUE_IN_GAP, 999, 99)),
        window=Window(at(1.2), at(1.9)),
    )

    assert [(row.reason, row.time_ns, row.times) for row in report.off_cpu] == [
        ("ipc", 400 * MS, 1),
        ("", 30 * MS, 3),
    ]
    (told,) = report.judged
    assert told.verdict == "data-bound"
    assert {state: ns for state, ns in told.budget_ns.items() if ns} == {
        "run_queue": 30 * MS,
        "ipc": 400 * MS,
    }
    assert told.verdict_shares["data"] == pytest.approx(400 / 430)


def test_time_on_the_cpu_is_not_off_it():
    """The table tells who waited; threads that feed no GPU come last, however long they sleep."""
    report = report_of(
        capture(),
        times(
            1,
            TRAINER,
            (wire.STATE_ON_CPU, wire.CONTEXT_CALL, "", 800, 1),
            (wire.STATE_BLOCKED, wire.CONTEXT_OTHER, "sleep", 5_000, 5),
            (wire.STATE_BLOCKED, wire.CONTEXT_CALL, "io", 50, 2),
        ),
    )

    assert [(row.reason, row.time_ns, row.times) for row in report.off_cpu] == [
        ("io", 50 * MS, 2),
        ("sleep", 5_000 * MS, 5),
    ]


def test_what_bounds_a_process_is_in_the_report():
    """With its numbers, and with what was too much to remember."""
    given = verdict(TRAINER)
    report = report_of(
        capture(), feeding(1, TRAINER), explainer=FakeExplainer(given_up={"stalls": 3})
    )

    (told,) = report.judged
    assert told.verdict == given.verdict
    assert told.verdict_shares == dict.fromkeys(TimeClass, 0) | given.shares
    assert told.budget_ns == dict.fromkeys(STATES, 0) | given.budget_ns
    assert report.programs == (TRAINER,)
    assert report.notes[-1].endswith(": stalls 3.")


GATE = image(42, 0, name="unknown_service")


def waited(process, ms=3):
    """A wait for a CPU, as every process has one when it begins."""
    return series(process, wire.METRIC_RUN_QUEUE, aggregate([ms * MS]))


def test_what_a_process_was_before_its_exec_is_left_out():
    """A shell, or our own command, forks to run the program: until then it is nobody."""
    report = report_of(
        capture(),
        snapshot(1, waited(GATE)),
        times(1, GATE, (wire.STATE_RUN_QUEUE, wire.CONTEXT_OTHER, "", 3, 1)),
        replaced(GATE, 1),
        snapshot(2, calls(TRAINER, "cudaFree", [US]), waited(TRAINER)),
        times(2, TRAINER, (wire.STATE_RUN_QUEUE, wire.CONTEXT_OTHER, "", 3, 1)),
    )

    assert report.programs == (TRAINER,)
    assert [row.process for row in report.off_cpu] == [TRAINER]
    assert {slot.process for slot in report.time_buckets} == {None, TRAINER}


def test_its_last_figures_may_come_after_the_exec():
    """The counters are read once a second."""
    report = report_of(capture(), replaced(GATE, 1), snapshot(1, waited(GATE)))

    assert report.programs == ()


@pytest.mark.parametrize(
    "did",
    [
        [snapshot(1, calls(GATE, "cudaFree", [US]))],
        [times(1, GATE, (wire.STATE_BLOCKED, wire.CONTEXT_GAP, "ipc", 3, 1))],
    ],
    ids=["a call", "a gap"],
)
def test_a_program_that_fed_a_gpu_before_its_exec_is_told_of(did):
    """A launcher may ask for the devices first."""
    explainer = Explainer()

    report = report_of(
        capture(), snapshot(1, waited(GATE)), *did, replaced(GATE, 2), explainer=explainer
    )

    assert report.programs == (GATE,)


def test_a_program_whose_call_was_slow_before_its_exec_is_told_of():
    """Whatever has a chain is no passing stage."""
    explainer = FakeExplainer(planned={1: [preempted(GATE, SECOND)]})

    report = report_of(capture(), replaced(GATE, 2), explainer=explainer)

    assert report.programs == (GATE,)


def test_a_process_that_made_no_call_and_ended_is_told_of():
    """A data loader is no stage of another program."""
    report = report_of(capture(), snapshot(1, waited(OTHER)), ended(OTHER, 2))

    assert report.programs == (OTHER,)


def test_calls_before_the_window_count_for_who_is_told_of():
    """In the window it waited for a CPU, and that was a program with a GPU."""
    report = report_of(
        capture(),
        snapshot(1, calls(GATE, "cudaFree", [US])),
        snapshot(2, waited(GATE)),
        replaced(GATE, 3),
        window=Window(at(1.5), at(4)),
    )

    assert report.programs == (GATE,)


def test_so_many_execs_are_remembered(monkeypatch):
    """The first of them is told of again, rather than the memory filled."""
    monkeypatch.setattr(module, "MAX_REPLACED", 2)
    stages = [image(pid, 0, name="sh") for pid in (1, 2, 3)]

    report = report_of(
        capture(),
        snapshot(1, *(waited(stage) for stage in stages)),
        *(replaced(stage, 2) for stage in stages),
    )

    assert report.programs == (stages[0],)


def test_losses_are_told_by_reason():
    """What the kernel lost and what could not be decoded; what did not occur is not told."""
    report = report_of(
        capture(), counters(1, lost_ring_full=3, spans_chosen=9), rejected={"short": 2}
    )

    assert report.losses == {"rejected_short": 2, "ring_full": 3}


def test_processes_that_were_not_watched_from_the_start_are_named():
    """With the reason, and how many there are beside those that are named."""
    one = {"pid": 7, "name": "calls", "reason": "it was late", "file": "/lib/libcudart.so.12"}

    report = report_of(
        capture(),
        counters(1, lost_not_watched_from_start=3),
        status(1, missed_starts=[one]),
    )

    assert report.losses == {"not_watched_from_start": 3}
    (note,) = [note for note in report.notes if "not watched from the start" in note]
    assert note == (
        "Calls of 3 processes are missing or may be, as they were not watched from the start: "
        "calls (7): it was late, /lib/libcudart.so.12; and 2 more."
    )


def test_who_had_the_share_of_what_all_programs_have_together_is_named():
    """A program, with its user; or, where all programs of a user have one share, the user."""
    refused = [
        {"bound": "series", "pid": 7, "name": "calls", "user": "eve", "count": 3953},
        {"bound": "processes", "pid": 0, "name": "", "user": "eve", "count": 11},
    ]

    report = report_of(capture(), counters(1, lost_series_full=3953), status(1, over_share=refused))

    notes = [note for note in report.notes if "of user eve" in note]
    assert notes == [
        (
            "calls (7) of user eve used up its share of the limits for all programs: 3,953 calls "
            "are not counted, as each would be the first of its series."
        ),
        (
            "all programs of user eve used up its share of the limits for all programs: 11 "
            "processes are not watched."
        ),
    ]


def test_notes_tell_what_is_not_known():
    """Rate-limited spans, symbols without probes, a missing account: a reader has to know."""
    failing = probes(1, "/usr/lib/libcudart.so.12", 60, 62)
    failing.info["failed"] = ["cudaGraphLaunch_ptsz", "cudaMemset"]

    report = report_of(
        capture(),
        failing,
        snapshot(1, calls(TRAINER, "cudaFree", [US])),
        counters(1, spans_rate_limited=17),
        notes=["One more."],
    )

    text = "\n".join(report.notes)
    assert "17 spans rate-limited" in text
    assert "2 symbols of /usr/lib/libcudart.so.12 could not be probed" in text
    assert "The times of threads were not recorded" in text
    assert "host time" in text
    assert report.notes[-1] == "One more."


@pytest.mark.parametrize(
    ("repaired", "said"),
    [
        (0, []),
        (12, []),
        (13, ["13 of 12,000 context switches of the capture were repaired"]),
    ],
)
def test_a_note_tells_of_switches_that_the_kernel_left_out(repaired, said):
    """More than one in a thousand, and what is said of times off the CPU is less sure."""
    report = report_of(
        capture(), counters(1, scheduler_switches=12_000, switches_repaired=repaired)
    )

    assert [note.split(":")[0] for note in report.notes if "context switches" in note] == said


def test_a_note_tells_why_threads_have_no_steps():
    """By the latest word of the agent; too few calls are no reason to speak of."""
    report = report_of(
        capture(),
        status(1, steps={"no_iterations": 3}),
        status(2, steps={"found": 1, "few_calls": 9, "no_iterations": 2, "lost": 1}),
    )

    assert [note for note in report.notes if "steps" in note] == [
        "No steps were found of 2 threads, whose calls do not repeat themselves.",
        "No steps were found of 1 thread, whose calls no longer make the steps that were found.",
    ]


def test_an_empty_recording_makes_a_report():
    """A capture that saw nothing is explained as such."""
    report = report_of(capture())

    assert (report.apis, report.incidents, report.processes) == ((), (), ())
    assert "No CUDA call was counted." in report.notes


def test_a_call_that_hung_and_returned_lost_its_time_once():
    """It is told while it hangs, and again as a slow call when it returns."""
    hung = preempted(TRAINER, SECOND, "h", duration_ns=SECOND)
    hung = hung._replace(effect=hung.effect._replace(kind="hung_call"))
    slow = preempted(TRAINER, SECOND, "s", duration_ns=2 * SECOND)
    explainer = FakeExplainer(planned={1: [hung], 2: [slow]})

    report = report_of(capture(), counters(4), explainer=explainer)

    assert {chain.id for chain in report.chains} == {"h", "s"}
    lost_ns = sum(slot.lost_ns for slot in report.time_buckets if slot.process is None)
    assert lost_ns == pytest.approx(slow.effect.excess_ns)


def test_chains_that_lost_least_are_left_out(monkeypatch):
    """Memory is bounded; the figure of what is missing is told."""
    monkeypatch.setattr(chain_rows, "MAX_CHAINS", 2)
    chains = [
        preempted(TRAINER, n * SECOND, f"c{n}", duration_ns=(20 + n) * MS) for n in range(1, 6)
    ]

    report = report_of(capture(), explainer=FakeExplainer(late=chains))

    assert [chain.id for chain in report.chains] == ["c4", "c5"]
    assert any(note.startswith("3 causal chains not listed") for note in report.notes)


def test_series_that_find_no_room_are_counted(monkeypatch):
    """A recording of a stranger cannot fill the memory."""
    monkeypatch.setattr(ledger_module, "MAX_SERIES", 1)

    report = report_of(
        capture(),
        snapshot(1, calls(TRAINER, "cudaFree", [US]), calls(TRAINER, "cudaMalloc", [US])),
    )

    assert [row.api for row in report.apis] == ["cudaFree"]
    assert report.notes[-1].startswith("1 reading found no room")


def test_slots_follow_the_counters():
    """Calls per second and lost time by second of the capture, for all and for each process."""
    explainer = FakeExplainer(late=[preempted(TRAINER, SECOND + 500 * MS)])
    report = report_of(
        capture(),
        snapshot(1, calls(TRAINER, "cudaMalloc", [US] * 10), calls(OTHER, "cudaFree", [US] * 5)),
        snapshot(2, calls(TRAINER, "cudaMalloc", [US] * 40)),
        explainer=explainer,
    )

    rows = {
        process: [s for s in report.time_buckets if s.process is process]
        for process in (None, OTHER)
    }
    assert [round(slot.calls, 6) for slot in rows[None]] == [15, 30]
    assert [round(slot.allocate_calls, 6) for slot in rows[OTHER]] == [5, 0]
    assert [slot.lost_ns for slot in rows[None]] == [0, 10 * MS - 4_000]
    assert [(slot.start_unix_ns, slot.end_unix_ns) for slot in rows[None]] == [
        (at(0), at(1)),
        (at(1), at(2)),
    ]


def starving(at_s, lost_ms):
    """The account of a trainer that waits for its loader."""
    waits = NO_WAIT._replace(api=1, who=WORKER, end=WORKER, end_state=wire.STATE_ON_CPU)
    reading = times(at_s, TRAINER, (*BLOCKED_IN_GAP, lost_ms, 10), (*ON_CPU_WAITING, 10, 1))
    return reading._replace(
        times=tuple(
            one._replace(ended_ns=one.time_ns, wait=waits if one.reason else NO_WAIT)
            for one in reading.times
        )
    )


def test_what_takes_much_of_a_window_is_an_incident_of_it():
    """Also of a window in which nothing was slower than usual; not of one before that."""
    stream = [
        *(capture(), starving(1, 0), starving(2, 0)),
        *(starving(3, 900), starving(4, 1800), starving(5, 2700)),
    ]

    during = report_of(*stream, window=Window(at(3), at(5)))
    before = report_of(*stream, window=Window(at(1), at(2)))
    other = report_of(*stream, window=Window(at(3), at(5)), pids=[OTHER.pid])

    (found,) = during.incidents
    assert (found.chronic, found.process, found.lost_ns) == (True, TRAINER, 1800 * MS)
    assert found.causes[0].culprit == WORKER
    assert (before.incidents, other.incidents) == ((), ())
    assert during.of_process(TRAINER).incidents == during.incidents
    assert during.of_process(OTHER).incidents == ()
    tree = during.processes[0].time_tree
    assert tree.children[0].children[0].who.comm == WORKER.comm


def test_a_whole_capture_has_the_incidents_that_the_explainer_has():
    """It looks at every stretch of it, as the live agent does."""
    stream = [capture(), *(starving(second, 900 * second) for second in range(5))]

    (found,) = report_of(*stream, explainer=Explainer()).incidents

    assert (found.chronic, found.lost_ns) == (True, 3600 * MS)
