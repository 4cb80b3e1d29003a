"""Dumps of a job that hangs, from the files to the report: who is missing, who disagrees, or nobody."""

import json
import os
import re
from importlib import resources

import pytest
from jsonschema import validate

from otel_gpu import cli
from otel_gpu.importers.flight_recorder.dump import read_dump
from tests.unit.importers.flight_dumps import HELD_UP, T0, dump, entry, run, write
from tests.unit.mcp import served

SCHEMA = json.loads(resources.files("otel_gpu.report").joinpath("schema.json").read_text("utf-8"))
# Ten minutes after the last call, as PyTorch gives up.
AT = T0 + 600 * 10**9


@pytest.fixture
def report(tmp_path, capsys, monkeypatch):
    """Import the dumps of ranks, and return what is said of them."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)

    def make(ranks):
        for path in write(tmp_path, ranks):
            os.utime(path, ns=(AT, AT))
        command = ["import", "nccl-flight-recorder", str(tmp_path)]
        assert cli.main([*command, "--json"]) == 0
        made = json.loads(capsys.readouterr().out)["report"]
        validate(made, SCHEMA)
        assert cli.main(command) == 0
        return made, capsys.readouterr().out

    return make


def stack_of(made, name):
    return [frame["function"] for frame in made["stacks"][name]["frames"]]


def test_a_rank_that_did_not_call_is_missing(report):
    """The others wait for it; where each of them does, and where that one was last, is said."""
    late = dump([*run(55, done=55)["entries"], entry(56, frames=HELD_UP)])

    made, text = report({rank: late if rank == 2 else run(57, done=56) for rank in range(4)})

    (one,) = made["communicators"]
    assert (one["state"], one["number"], one["rank_count"]) == ("rank_missing", 57, 4)
    assert "not called by rank 2" in one["waiting"]
    assert [rank["where"]["function"] for rank in one["ranks"]] == [
        "reduce_gradients", "reduce_gradients", "log_loss", "reduce_gradients",
    ]  # fmt: skip
    assert stack_of(made, one["ranks"][0]["stack"]) == [
        "all_reduce",
        "reduce_gradients",
        "<module>",
    ]
    (incident,) = made["incidents"]
    assert (incident["severity"], incident["causes"][0]["kind"]) == ("high", "collective_wait")
    assert incident["causes"][0]["culprit"]["comm"] == "rank 2"
    assert len(incident["chains"]) == 3
    chain = made["chains"][0]
    assert (chain["effect"]["kind"], chain["effect"]["api"]) == ("hung_collective", "all_reduce")
    assert stack_of(made, chain["effect"]["stack"])[-2:] == ["reduce_gradients", "<module>"]
    assert "lost 1798 s in 3 \N{MULTIPLICATION SIGN} hung in all_reduce" in text
    assert "(-" not in text


def test_ranks_that_ask_for_different_things_disagree(report):
    """What each of them asked for is said."""
    odd = dump([*run(56, done=56)["entries"], entry(57, state="started", sizes=((2048,),))])

    made, _ = report({rank: odd if rank == 1 else run(57, done=56) for rank in range(4)})

    (one,) = made["communicators"]
    assert (one["state"], one["number"]) == ("ranks_disagree", 57)
    assert "rank 1 asked for all_reduce of 2,048 float32" in one["waiting"]
    assert "rank 0, rank 2, rank 3 asked for all_reduce of 1,024 float32" in one["waiting"]
    assert made["incidents"][0]["causes"][0]["kind"] == "collective_mismatch"


def test_what_all_called_and_none_has_done_is_the_device_or_the_network(report):
    """Nobody is to blame."""
    made, _ = report({rank: run(57, done=56) for rank in range(4)})

    (one,) = made["communicators"]
    assert one["state"] == "queued"
    (cause,) = made["incidents"][0]["causes"]
    assert (cause["kind"], cause["culprit"]) == ("collective_stuck", None)


def test_a_job_that_went_on_has_no_incident(report):
    """All is done, but for what was called just now."""
    made, _ = report({rank: run(57, done=57) for rank in range(4)})

    assert made["incidents"] == []
    assert made["communicators"][0]["state"] == "running"


def test_a_rank_far_ahead_is_compared_where_the_others_are(report):
    """Thousands of collectives may be queued behind the one that hangs."""
    made, _ = report({rank: run(56 if rank == 2 else 1_500, done=56) for rank in range(4)})

    (one,) = made["communicators"]
    assert (one["state"], one["number"]) == ("rank_missing", 57)
    assert [rank["pending"] for rank in one["ranks"]] == [1_444, 1_444, 0, 1_444]


def test_a_group_that_one_rank_never_used(report):
    """It hangs before its first call there."""
    other = {"7": {"name": "7", "desc": "data_parallel", "ranks": "[0, 1]"}}
    waits = entry(1, record=56, process_group=("7", "data_parallel"), pg_id=3, state="started")
    ahead = dump([*run(56, done=56)["entries"], waits], ranks=(0, 1), groups=other)
    behind = run(56, done=56, ranks=(0, 1), groups=other)

    made, _ = report({0: ahead, 1: behind})

    state = {one["state"]: one["waiting"] for one in made["communicators"]}
    assert set(state) == {"rank_missing", "running"}
    assert "1 of communicator 7 (data_parallel): not called by rank 1" in state["rank_missing"]


def test_all_ranks_of_a_large_job_are_compared(report):
    """One of them is named."""
    size = 80
    dumps = {
        rank: run(3 if rank == 37 else 4, done=3, ranks=tuple(range(size))) for rank in range(size)
    }

    made, _ = report(dumps)

    (one,) = made["communicators"]
    assert "not called by rank 37" in one["waiting"]


def names_of(causes):
    """The culprits of causes, all of each."""
    return [
        [one["comm"] for one in (cause["culprit"], *cause.get("others", ())) if one]
        for cause in causes
    ]


def test_all_ranks_that_did_not_call_are_named(report):
    """Not one of them: each kept the others waiting all the time (nccl#1911, pytorch#177076)."""
    missing = [0, 1, 2, 3, 4, 5, 6, 7, 9, 11, 12, 13]
    ranks = tuple(range(14))
    dumps = {rank: run(56 if rank in missing else 57, done=56, ranks=ranks) for rank in ranks}

    made, text = report(dumps)

    (incident,) = made["incidents"]
    names = [f"rank {rank}" for rank in missing]
    assert names_of(incident["causes"]) == [names]
    assert "not called by ranks 0-7, 9, 11-13" in incident["causes"][0]["resource"]["name"]
    assert {(row["culprit"]["comm"], row["time_ns"]) for row in made["culprit_times"]} == {
        (name, incident["causes"][0]["time_ns"] // 2) for name in names
    }
    (one,) = made["communicators"]
    kept = {rank["rank"]: rank["kept_others_waiting_ns"] for rank in one["ranks"]}
    assert all(kept[rank] >= 2 * 599 * 10**9 for rank in missing)
    assert kept[8] == kept[10] == 0
    assert "not called by ranks 0-7, 9, 11-13  collective_wait\n" in text
    assert ", by rank" not in text


def exchange(number, sends, receives, *, splits=True, **more):
    """An exchange of different amounts, as PyTorch records it since 2.11 with what goes to whom."""
    said = {"input_split_sizes": sends, "output_split_sizes": receives} if splits else {}
    sizes = {"input_sizes": [[sum(sends)]], "output_sizes": [[sum(receives)]]}
    return entry(number, name="nccl:all_to_all", state="started", **sizes, **said, **more)


def exchanging(rows, **more):
    """Dumps of ranks that did 56 collectives, and of which each exchanges these amounts in the next."""
    ranks = tuple(range(len(rows)))
    return {
        rank: dump(
            [*run(56, done=56)["entries"], exchange(57, *row, **more)],
            ranks=ranks,
        )
        for rank, row in enumerate(rows)
    }


def test_an_exchange_that_does_not_match_is_a_mismatch(report):
    """What one sends another one that expects less, is named (pytorch#194559)."""
    made, _ = report(exchanging([([1, 3], [1, 3]), ([3, 3], [1, 3])]))

    (one,) = made["communicators"]
    assert (one["state"], one["number"]) == ("ranks_disagree", 57)
    assert one["waiting"].endswith("rank 0 sends 3 elements to rank 1, which expects 1")
    (incident,) = made["incidents"]
    (cause,) = incident["causes"]
    assert cause["kind"] == "collective_mismatch"
    # Which of the two is wrong is not known.
    assert names_of([cause]) == [["rank 0", "rank 1"]]


def test_the_rank_of_which_no_pair_matches_is_named(report):
    """Who all others disagree with."""
    rows = [[5] * 4, [5] * 4, [7] * 4, [5] * 4]
    made, _ = report(exchanging([(row, [5] * 4) for row in rows]))

    (cause,) = made["incidents"][0]["causes"]
    assert names_of([cause]) == [["rank 2"]]


def test_an_exchange_whose_splits_are_not_recorded_is_compared_by_its_sums(report):
    """They are 10 and 8; where they agree it is not known whether the splits do."""
    made, _ = report(exchanging([([1, 3], [1, 3]), ([3, 3], [1, 3])], splits=False))

    (cause,) = made["incidents"][0]["causes"]
    assert cause["kind"] == "collective_mismatch"
    assert cause["resource"]["name"].endswith("the ranks send 10 elements in all, and expect 8")


@pytest.mark.parametrize("splits", [True, False])
def test_an_exchange_that_matches_is_no_mismatch(report, splits):
    """Ranks exchange different amounts, as they may."""
    made, _ = report(exchanging([([1, 3], [1, 2]), ([2, 4], [3, 4])], splits=splits))

    (cause,) = made["incidents"][0]["causes"]
    assert cause["kind"] == "collective_stuck"
    is_not_known = "what they send each other is not what they expect, which is not known"
    assert cause["resource"]["name"].endswith(is_not_known) is not splits


def test_a_list_of_tensors_has_one_for_each_rank(report):
    """Their sizes are the splits."""
    rows = [([1, 3], [1, 3]), ([3, 3], [1, 3])]
    dumps = {}
    for rank, (sends, receives) in enumerate(rows):
        sizes = {
            "input_sizes": [[one] for one in sends],
            "output_sizes": [[one] for one in receives],
        }
        exchanged = entry(57, name="nccl:all_to_all", state="started") | sizes
        dumps[rank] = dump([*run(56, done=56)["entries"], exchanged], ranks=(0, 1))

    made, _ = report(dumps)

    assert made["communicators"][0]["waiting"].endswith(
        "rank 0 sends 3 elements to rank 1, which expects 1"
    )


def test_splits_of_more_ranks_than_are_kept_are_compared_by_their_sums(report):
    """What one rank exchanges with each of thousands is no more than two numbers."""
    rows = [([1] * 2_000, [1] * 2_000), ([1] * 1_999 + [2], [1] * 2_000)]

    made, _ = report(exchanging(rows))

    assert made["communicators"][0]["waiting"].endswith(
        "the ranks send 4,001 elements in all, and expect 4,000"
    )


@pytest.mark.parametrize("splits", [["x"], [-1, 4], [1 << 62], [[1]]])
def test_splits_that_make_no_sense_are_counted(tmp_path, splits):
    """The entry is left out, and nothing else."""
    bad = exchange(57, [1, 3], [1, 3]) | {"input_split_sizes": splits}
    (path,) = write(tmp_path, {0: dump([*run(56, done=56)["entries"], bad], ranks=(0, 1))})

    found = read_dump(path)

    assert found.rejected == {"entries whose splits makes no sense": 1}
    assert found.groups["0"].called == 56


def test_what_was_called_at_once_has_the_name_of_all_of_it(report):
    """Two reductions that are a reduce_scatter of different amounts (pytorch#177076)."""
    names = ("nccl:_reduce_oop", "nccl:_reduce_oop", "nccl:REDUCE_SCATTER_coalesced")
    entries = [
        entry(57, record=56 + at, name=name, state="started") for at, name in enumerate(names)
    ]
    waits = dump([*run(56, done=56)["entries"], *entries])

    made, _ = report({rank: run(56, done=56) if rank > 1 else waits for rank in range(4)})

    assert "reduce_scatter 57 of communicator" in made["communicators"][0]["waiting"]
    assert "not called by rank 2, rank 3" in made["communicators"][0]["waiting"]


def parallel(stuck):
    """Two by two ranks, tensor and data parallel; one never comes to a collective of its tensor group."""
    groups = [
        ([0, 1, 2, 3], "default_pg"),
        ([0, 1], "tp"),
        ([2, 3], "tp"),
        ([0, 2], "dp"),
        ([1, 3], "dp"),
    ]
    for rank in range(4):
        tensor, data = ("12"[rank // 2], "tp"), ("34"[rank % 2], "dp")
        entries = []
        for number in range(1, 6):
            for group in (tensor, data):
                if number == 5 and (rank == stuck or (rank ^ 1 == stuck and group is data)):
                    continue
                is_done = number < 5 or (group is tensor and rank ^ 1 != stuck)
                entries.append(
                    entry(
                        number,
                        record=len(entries),
                        process_group=group,
                        pg_id=int(group[0]),
                        state="completed" if is_done else "started",
                        time_created_ns=T0 + len(entries) * 10_000_000,
                    )
                )
        # A rank knows the groups that it is in.
        config = {
            str(at): {"name": str(at), "desc": name, "ranks": str(ranks)}
            for at, (ranks, name) in enumerate(groups)
            if rank in ranks
        }
        yield rank, dump(entries) | {"pg_config": config}


def test_waits_are_followed_from_group_to_group(report):
    """Rank 1 is stuck; rank 0 waits for it, and so keeps rank 2 waiting: one incident, one numbering."""
    made, text = report(dict(parallel(stuck=1)))

    (incident,) = made["incidents"]
    assert len(incident["chains"]) == 3
    by_effect = {chain["effect"]["comm"]: chain["causes"] for chain in made["chains"]}
    assert {name: names_of(causes) for name, causes in by_effect.items()} == {
        "rank 0": [["rank 1"]],
        "rank 2": [["rank 0"]],
        "rank 3": [["rank 1"]],
    }
    ((through,),) = [cause["via"] for cause in by_effect["rank 2"]]
    assert through["kind"] == "collective_wait"
    assert through["culprit"]["comm"] == "rank 1"
    waiting = [one["waiting"] for one in made["communicators"] if one["waiting"]]
    assert sorted(one.partition(": ")[2] for one in waiting) == [
        "not called by rank 0; 1 on this host called it and wait",
        "not called by rank 1; 1 on this host called it and wait",
        "not called by rank 1; 1 on this host called it and wait",
    ]
    # The process of a rank of a dump has no pid, and one below 0 in its place.
    assert {
        rank["rank"] + rank["pid"] for one in made["communicators"] for rank in one["ranks"]
    } == {-1}
    assert "not called by rank 3" not in text


@pytest.mark.parametrize(
    "ranks",
    [
        {rank: run(56 if rank == 2 else 95, done=56) for rank in range(4)},
        {rank: run(57 if rank == 2 else 56, done=56) for rank in range(4)},
        exchanging([([1, 3], [1, 3]), ([3, 3], [1, 3])]),
        exchanging([([1, 3], [1, 3]), ([3, 3], [1, 3])], splits=False),
        dict(parallel(stuck=1)),
    ],
    ids=["one is missing", "three are", "splits", "sums", "groups"],
)
def test_a_store_says_what_the_import_said(tmp_path, capsys, monkeypatch, ranks):
    """With the stacks of the calls, of more of them than a reading of our own has."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    for path in write(dumps, ranks):
        os.utime(path, ns=(AT, AT))
    store = str(tmp_path / "store.db")
    command = ["import", "nccl-flight-recorder", str(dumps), "--store", store, "--json"]
    assert cli.main(command) == 0
    imported = json.loads(capsys.readouterr().out)["report"]
    assert cli.main(["explain", "--store", store, "--json"]) == 0
    kept = json.loads(capsys.readouterr().out)

    for part in ("communicators", "incidents", "chains", "stacks", "losses"):
        assert kept[part] == imported[part]
    assert kept["communicators"][0]["ranks"][0]["where"]["function"] == "reduce_gradients"
    assert kept["culprit_times"] == imported["culprit_times"]


def test_assistants_are_told_of_all_ranks(tmp_path, monkeypatch):
    """The collective, and each rank that did not call it."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    dumps, store = tmp_path / "dumps", tmp_path / "store.db"
    dumps.mkdir()
    for path in write(dumps, {rank: run(57 if rank == 2 else 56, done=56) for rank in range(4)}):
        os.utime(path, ns=(AT, AT))
    assert cli.main(["import", "nccl-flight-recorder", str(dumps), "--store", str(store)]) == 0

    answer = served.ask(served.capture_of(store), "get_causal_chains")
    ((cause,),) = [one["causes"] for one in answer["incidents"]["rows"]]

    assert [one["thread"] for one in (cause["by"], *cause["others"])] == [
        "rank 0",
        "rank 1",
        "rank 3",
    ]
    assert cause["collective"].endswith("not called by rank 0, rank 1, rank 3")


def test_a_page_calls_ranks_what_they_are(tmp_path, monkeypatch):
    """They have no pid; and whose fault it is, is known, though not why."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    dumps, store, page = tmp_path / "dumps", tmp_path / "store.db", tmp_path / "page.html"
    dumps.mkdir()
    for path in write(dumps, {rank: run(57 if rank == 2 else 56, done=56) for rank in range(4)}):
        os.utime(path, ns=(AT, AT))
    assert cli.main(["import", "nccl-flight-recorder", str(dumps), "--store", str(store)]) == 0
    assert cli.main(["report", "--store", str(store), "--html", str(page)]) == 0

    body = re.sub(r"<(script|style).*?</\1>", "", page.read_text("utf-8"), flags=re.DOTALL)
    words = " ".join(re.sub(r"<[^>]+>", " ", body).split())

    assert "(-" not in words
    assert "unknown_service" not in words
    assert "Whose fault: rank 0 , rank 1 , rank 3 , which the others waited for" in words
