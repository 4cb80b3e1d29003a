"""Tools answer with the figures of explain, and cite what they rest on."""

import itertools
import json
import re
from collections import Counter

import pytest

from otel_gpu import cli
from otel_gpu.capture.recording import RecordingWriter
from otel_gpu.enrich.activities import (
    CallActivity,
    GapActivity,
    ProbesActivity,
    StallActivity,
    StatusActivity,
)
from otel_gpu.mcp.answers import MAX_BYTES
from otel_gpu.mcp.server import answer
from otel_gpu.mcp.tools import TOOLS
from tests.unit.cli.commands import starved as starved_story
from tests.unit.mcp import served

NAMES = [tool.name for tool in TOOLS]
OF_RECORDINGS = [name for name in NAMES if name not in {"run_sql", "get_comparison"}]


@pytest.fixture(scope="module")
def churn():
    return served.capture_of(served.CHURN)


@pytest.fixture(scope="module")
def starved():
    return served.capture_of(served.STARVED)


@pytest.fixture
def explained(capsys):
    def explain(path):
        assert cli.main(["explain", str(path), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return explain


def test_there_are_thirteen_tools():
    """These, in the order in which an investigation uses them."""
    assert NAMES == [
        "get_check",
        "get_processes",
        "get_trace_stats",
        "get_time_budget",
        "get_causal_chains",
        "get_timeline",
        "get_collectives",
        "get_memory_balance",
        "get_device_memory",
        "get_device_time",
        "get_comparison",
        "get_stacks",
        "run_sql",
    ]


@pytest.mark.parametrize("path", [served.CHURN, served.STARVED, served.DEMO], ids=lambda p: p.stem)
def test_calls_are_those_of_explain(path, explained):
    """An assistant and a person read the same figures."""
    document = explained(path)

    stats = served.ask(served.capture_of(path), "get_trace_stats", limit=500)

    told = [
        [
            row[name]
            for name in ("pid", "api", "layer", "calls", "errors", "max_us", "sum_us", "bytes")
        ]
        for row in served.rows(stats["apis"])
    ]
    assert told == [
        [
            *(api[name] for name in ("pid", "api", "layer", "calls", "errors")),
            api["max_ns"] / 1_000,
            api["sum_ns"] / 1_000,
            api["bytes"],
        ]
        for api in document["apis"]
    ]
    assert stats["calls"] == sum(api["calls"] for api in document["apis"])
    assert stats["incidents"] == len(document["incidents"])


@pytest.mark.parametrize("path", [served.CHURN, served.STARVED, served.DEMO], ids=lambda p: p.stem)
def test_incidents_and_verdicts_are_those_of_explain(path, explained):
    """So are causes, and what bounds a process."""
    document = explained(path)
    capture = served.capture_of(path)

    incidents = served.ask(capture, "get_causal_chains", limit=3)["incidents"]["rows"]
    verdicts = served.ask(capture, "get_time_budget")["verdicts"]["rows"]

    assert [
        (one["id"], one["severity"], one["lost_us"], one["unexplained_us"]) for one in incidents
    ] == [
        (one["id"], one["severity"], one["lost_ns"] / 1_000, one["unexplained_ns"] / 1_000)
        for one in document["incidents"][:3]
    ]
    assert [(v["pid"], v["verdict"]) for v in verdicts] == [
        (p["pid"], p["verdict"]) for p in document["processes"] if p["verdict_shares"]
    ]


@pytest.mark.parametrize("name", OF_RECORDINGS)
def test_the_same_question_has_the_same_answer(name):
    """Whoever asks again, also tomorrow, reads the same."""
    first = answer(served.capture_of(served.DEMO), name, {})
    capture = served.capture_of(served.DEMO)

    assert answer(capture, name, {}) == first
    assert answer(capture, name, {}) == first


@pytest.mark.parametrize("name", OF_RECORDINGS)
def test_answers_are_of_bounded_size(name):
    """However much is asked for."""
    most = {"limit": 50} if name in {"get_causal_chains", "get_timeline", "get_trace_stats"} else {}

    text, is_error = answer(served.capture_of(served.DEMO), name, most)

    assert not is_error
    assert len(text.encode()) <= MAX_BYTES


def test_causes_have_culprits_shares_and_evidence(starved):
    """The trainer waited for its loader, which waited for a CPU that the hog had."""
    incident = served.ask(starved, "get_causal_chains")["incidents"]["rows"][0]

    injected_us = served.SLOW_STEPS * served.INJECTED_US
    waited = incident["causes"][0]
    (behind, *_) = waited["of_which"]
    assert (waited["kind"], waited["by"]["thread"]) == ("ipc", "loader")
    assert waited["time_us"] == pytest.approx(injected_us, rel=0.1)
    assert 0.9 < waited["share"] <= 1
    assert (behind["kind"], behind["by"]["thread"]) == ("run_queue", "hog")
    assert behind["time_us"] == pytest.approx(injected_us, rel=0.1)
    pid = served.caller_of(served.STARVED)
    assert waited["evidence"][0].startswith(f"blocked-{pid}-{pid}-")
    assert incident["effects_seen"] == [
        {"kind": "slow_gap", "api": "cudaLaunchKernel", "count": served.SLOW_STEPS}
    ]
    assert incident["advice"][0].startswith("The thread was ready and its CPU was busy")


def test_a_chain_is_shown_with_its_intervals(starved):
    """Every evidence id of a chain leads to an interval with a span."""
    worst = served.ask(starved, "get_causal_chains", limit=1)["worst_chains"]["rows"][0]

    chain = served.ask(starved, "get_causal_chains", id=worst["id"])["chain"]

    intervals = {row["id"]: row for row in chain["intervals"]["rows"]}
    assert set(worst["causes"][0]["evidence"]) <= set(intervals)
    blocked = intervals[worst["causes"][0]["evidence"][0]]
    # It waited for a byte in a pipe.
    assert "anon_pipe_read" in blocked["kernel_functions"]
    assert blocked["woken_by"]["thread"] == "loader"
    assert re.fullmatch("[0-9a-f]{16}", blocked["span_id"])


def test_an_incident_is_shown_with_its_chains(churn, explained):
    """Its id gives all of it."""
    told = explained(served.CHURN)["incidents"][0]
    incident = served.ask(churn, "get_causal_chains")["incidents"]["rows"][0]

    whole = served.ask(churn, "get_causal_chains", id=incident["id"])["incident"]

    shown = [chain["id"] for chain in whole["chains"]["rows"]]
    assert (whole["id"], whole["effects"]) == (told["id"], told["effects"])
    assert shown == told["chains"][: len(shown)]
    assert len(shown) + whole["chains"].get("more", 0) == len(told["chains"])
    assert {
        (chain["effect"]["kind"], chain["effect"]["api"]) for chain in whole["chains"]["rows"]
    } == {("slow_call", "cudaMalloc")}


def test_an_id_that_is_none_is_said(churn):
    """A made-up id leads nowhere, and that is no failure."""
    assert "No incident or chain" in served.ask(churn, "get_causal_chains", id="chain-1")["note"]


@pytest.mark.parametrize("severity", ["high", "medium", "low"])
def test_severity_chooses(severity, explained, tmp_path):
    """What was asked for and nothing else: one story has only what is high, the other the rest."""
    story = served.write_story(tmp_path / "story.otelgpu")
    for path, held in ((served.TRAINING, {"medium", "low"}), (story, {"high"})):
        told = explained(path)

        found = served.ask(
            served.capture_of(path), "get_causal_chains", severity=severity, limit=50
        )

        for name, all_of_it in (("incidents", "incidents"), ("worst_chains", "chains")):
            wanted = {one["id"] for one in told[all_of_it] if one["severity"] == severity}
            assert {one["id"] for one in found[name]["rows"]} == wanted
            assert bool(wanted) is (severity in held)


def test_memory_is_balanced_and_gets_slower(churn):
    """The churning allocator frees what it allocates, and takes longer and longer."""
    steps = served.CHURN_STEPS
    took_ns = [
        one.end_unix_ns - one.start_unix_ns
        for one in served.activities_of(served.CHURN)
        if isinstance(one, CallActivity) and one.api.name in {"cudaMalloc", "cudaFree"}
    ]

    memory = served.ask(churn, "get_memory_balance")

    (balance,) = served.rows(memory["balance"])
    assert (balance["allocations"], balance["frees"]) == (steps, steps)
    assert (balance["allocated_bytes"], balance["bytes_in_use_more_at_end"]) == (steps << 20, 0)
    assert [(row["api"], row["does"], row["calls"]) for row in served.rows(memory["apis"])] == [
        ("cudaMalloc", "allocate", steps),
        ("cudaFree", "free", steps),
    ]
    (latency,) = memory["latency"]["rows"]
    points = served.rows(latency["over_time"])
    assert sum(row["calls"] for row in points) == pytest.approx(len(took_ns), rel=0.01)
    assert sum(row["calls"] * row["mean_us"] for row in points) == pytest.approx(
        sum(took_ns) / 1_000, rel=0.01
    )
    # Half of the steps take 50 µs to allocate, the last ones 30 ms.
    assert points[-1]["mean_us"] > 10 * points[0]["mean_us"]
    third = len(points) // 3
    first, last = (
        sum(row["calls"] * row["mean_us"] for row in some) / sum(row["calls"] for row in some)
        for some in (points[:third], points[-third:])
    )
    assert latency["growth"] == pytest.approx(last / first, rel=0.01)


def test_one_call_does_not_grow():
    """Where there are no three points, there is no first and no last third."""
    memory = served.ask(served.capture_of(served.TRAINING), "get_memory_balance")

    (latency,) = memory["latency"]["rows"]
    assert len(latency["over_time"]["rows"]) < 3
    assert latency["growth"] is None


def test_no_memory_calls_are_said(starved):
    """No balance is not a balance of nothing."""
    memory = served.ask(starved, "get_memory_balance")

    assert memory["note"] == "No allocating or freeing call was counted."


def test_the_budget_names_who_kept_whom_waiting(starved):
    """The hog's time is told with its name."""
    waiting = served.rows(served.ask(starved, "get_time_budget")["kept_waiting_by"])

    assert [(row["by_thread"], row["how"], row["effects"]) for row in waiting[:2]] == [
        ("loader", "ipc", 4),
        ("hog", "run_queue", 4),
    ]


def test_the_timeline_shows_the_worst_moment_by_itself(starved):
    """Without a window it is the worst incident's worst effect, in order of time, with spans."""
    timeline = served.ask(starved, "get_timeline")

    moments = timeline["moments"]["rows"]
    assert timeline["window"]["chosen"].startswith("around an example of the worst incident")
    assert [row["at_us"] for row in moments] == sorted(row["at_us"] for row in moments)
    assert Counter(row["kind"] for row in moments) == timeline["found"]
    longest_ns = max(
        one.end_unix_ns - one.start_unix_ns
        for one in served.activities_of(served.STARVED)
        if isinstance(one, GapActivity)
    )
    (gap,) = [row for row in moments if row["kind"] == "gap"]
    assert (gap["thread"], gap["for_us"]) == ("trainer", longest_ns / 1_000)
    waits = [row for row in moments if row.get("had_the_cpu", {}).get("thread") == "hog"]
    assert max(row["for_us"] for row in waits) == pytest.approx(served.INJECTED_US, rel=0.1)


def test_a_timeline_of_a_window_holds_what_touches_it(starved):
    """A window is named to the microsecond; of what does not fit, the longest are shown."""
    whole = served.ask(starved, "get_timeline", from_="+0.4s", to="+0.45s", limit=500)
    longest = served.ask(starved, "get_timeline", from_="+0.4s", to="+0.45s", limit=3)

    for row in whole["moments"]["rows"]:
        assert row["at_us"] <= 50_000
        assert row["at_us"] + row["for_us"] >= 0
    ranked = sorted(whole["moments"]["rows"], key=lambda row: -row["for_us"])
    assert {row["id"] for row in longest["moments"]["rows"]} == {row["id"] for row in ranked[:3]}
    assert longest["moments"]["more"] == len(ranked) - 3


def test_a_timeline_can_be_of_one_thread(starved):
    """Process, thread and least length narrow it."""
    pid = served.caller_of(served.STARVED)

    narrowed = served.ask(starved, "get_timeline", from_="+0s", pids=[pid], tid=pid, min_us=30_000)

    rows = narrowed["moments"]["rows"]
    assert {(row["pid"], row["tid"]) for row in rows} == {(pid, pid)}
    assert min(row["for_us"] for row in rows) >= 30_000
    # The gaps, and the waits in them.
    assert Counter(row["kind"] for row in rows) == {
        "gap": served.SLOW_STEPS,
        "blocked": served.SLOW_STEPS,
    }


def test_a_window_without_anything_is_said(starved):
    """Nothing found is an answer."""
    empty = served.ask(starved, "get_timeline", from_="2000-01-01", to="2000-01-02")

    assert empty["note"] == "Nothing in this window was recorded individually."


def test_windows_and_processes_narrow_every_report(starved):
    """All tools take them in the same way."""
    told = served.activities_of(served.STARVED)
    pid = served.caller_of(served.STARVED)
    first_ns = min(one.start_unix_ns for one in told if isinstance(one, GapActivity))
    others = {one.process.pid for one in told if isinstance(one, StallActivity)} - {pid}
    start_ns = served.ask(starved, "get_check")["window"]["start_unix_ns"]
    before_us = (first_ns - start_ns) // 2_000

    part = served.ask(starved, "get_causal_chains", from_="+0s", to=f"+{before_us / 1e6:.6f}s")
    other = served.ask(starved, "get_processes", pids=sorted(others))

    assert part["window"]["length_us"] == before_us
    assert part["nothing_found"] is True
    assert len(others) == 2
    assert {row["pid"] for row in other["processes"]["rows"]} == others


def test_the_check_says_what_is_known(starved):
    """What was lost, how much was kept, what the agent cost."""
    told = served.activities_of(served.STARVED)
    calls = sum(isinstance(one, CallActivity) for one in told)
    *_, status = (one.info for one in told if isinstance(one, StatusActivity))
    libraries = [one.info for one in told if isinstance(one, ProbesActivity)]

    check = served.ask(starved, "get_check")

    assert check["nothing_was_lost"] is True
    # A launch and a wait in each of 60 steps.
    assert check["covered"]["calls_counted"] == check["covered"]["calls_kept_one_by_one"] == 120
    assert check["covered"]["stacks_rate_limited"] == 0
    assert calls == 120
    assert check["agent"]["rss_bytes"] == status["rss_bytes"]
    assert any("host time" in note for note in check["not_known"]["rows"])
    assert served.rows(check["probes"]) == [
        {"library": one["library"], "symbols": one["symbols"], "failed": 0} for one in libraries
    ]


def test_what_was_lost_is_not_known_without_counters(tmp_path):
    """A recording that ends before they were read does not say that nothing was lost."""
    path = tmp_path / "short.otelgpu"
    with RecordingWriter(path) as writer:
        writer.write(list(itertools.islice(starved_story.tell(), 5)))

    check = served.ask(served.capture_of(path), "get_check")

    assert check["nothing_was_lost"] is None
    assert check["covered"]["calls_rate_limited"] is None
    assert check["covered"]["stacks_rate_limited"] is None
    assert check["agent"] is None
    assert any("losses are not known" in note for note in check["not_known"]["rows"])


def test_a_recording_cannot_be_asked_in_sql(starved):
    """What to do about it is said."""
    text, is_error = answer(starved, "run_sql", {"sql": "SELECT 1"})

    assert is_error
    assert "otel-gpu replay" in json.loads(text)["hint"]


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("get_everything", {}, "there is no tool"),
        ("get_check", {"nonsense": 1}, "unknown argument"),
        ("get_check", {"from": "yesterday"}, "'yesterday' is not a point in time"),
        ("get_check", {"from": "+2s", "to": "+1s"}, "the window ends before it begins"),
        ("get_timeline", {"limit": 10**9}, "limit must be an integer"),
    ],
)
def test_malformed_questions_are_errors_in_words(starved, name, arguments, told):
    """The tool says what is wrong, and answers the next question."""
    text, is_error = answer(starved, name, arguments)

    assert is_error
    assert told in json.loads(text)["error"]
    assert served.ask(starved, "get_check")["kind"] == "recording"


def test_a_bug_costs_one_answer(starved, monkeypatch, caplog):
    """What we did not think of is told to the operator, and the server goes on."""
    monkeypatch.setattr(starved, "examine", lambda *_: 1 / 0)

    text, is_error = answer(starved, "get_check", {})

    assert is_error
    assert json.loads(text) == {"error": "this answer failed; see the server's log"}
    assert "ZeroDivisionError" in caplog.text


def test_what_a_bug_says_is_inert(starved, monkeypatch, caplog):
    """A traced name in it moves no cursor of the operator's terminal either."""

    def fail(*_):
        raise ValueError("\x1b[2J\u202eevil\nname")

    monkeypatch.setattr(starved, "examine", fail)

    answer(starved, "get_check", {})

    (message,) = caplog.messages
    assert "evil" in message
    assert all(line.isprintable() for line in message.split("\n"))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    return served.write_hostile(tmp_path_factory.mktemp("hostile") / "hostile.otelgpu")


@pytest.mark.parametrize("name", OF_RECORDINGS)
def test_hostile_names_come_back_inert(name, hostile):
    """Whatever programs call themselves, an answer is a line of JSON with nothing to obey."""
    text, is_error = answer(served.capture_of(hostile), name, {})

    assert not is_error
    assert text.isprintable()
    assert not set("<>&`\u202e\x1b") & set(text)
    assert "](" not in text
    assert "x" * 500 not in text
    assert len(text.encode()) <= MAX_BYTES
    json.loads(text)


def test_hostile_names_are_there_to_be_seen(hostile):
    """Inert is not hidden: an investigation may be about such a program."""
    capture = served.capture_of(hostile)

    processes = served.ask(capture, "get_processes")["processes"]["rows"]
    chains = served.ask(capture, "get_causal_chains")

    assert "<img src=x onerror=alert(1)>" in processes[0]["command"]
    assert "<b>\ufffd[31mhog" in json.dumps(chains, ensure_ascii=False)
