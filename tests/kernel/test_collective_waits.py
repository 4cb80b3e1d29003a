"""Four ranks under an agent: for whom they wait is said, with what kept that one; and nothing of ranks that are well."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.kernel.agent import FIRST, Agent
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, stub_nccl, workload

pytestmark = pytest.mark.kernel

_HOG = "import os\nos.sched_setaffinity(0, {0})\nprint(flush=True)\nwhile True: pass"


class Explained(NamedTuple):
    """What a run of four ranks is explained as, and their pids by rank."""

    document: dict[str, Any]
    pids: dict[int, int]

    def causes(self, *kinds: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return incidents that matter and are led by a cause of these kinds, with that cause."""
        matter = (one for one in self.document["incidents"] if one["severity"] == "high")
        found = ((one, one["causes"][0]) for one in matter if one["causes"])
        return [(one, cause) for one, cause in found if cause["kind"] in kinds]


HANGS = ("collective_mismatch", "collective_stuck", "collective_wait")


def train(
    receiver: OtlpReceiver, stubs: StubLibraries, folder: Path, *how: str, limit_s: int = 60
) -> Explained:
    """Run four ranks, no longer than a limit, and have it explained."""
    recording = folder / "run"
    ranks = [workload("ranks"), stubs.runtime, stub_nccl(), "4", *how]
    command = ["timeout", "-s", "KILL", str(limit_s), *ranks]
    with Agent(receiver, command, flags=("--record", str(recording))) as agent:
        started = [line for line in agent.wait().lines if "comm" in line]
    explain = [sys.executable, "-m", "otel_gpu", "explain", str(recording), "--json"]
    written = subprocess.run(explain, capture_output=True, text=True, check=True, timeout=120)
    document = json.loads(written.stdout)
    (row,) = document["communicators"]
    assert row["id"] == started[0]["comm"]
    assert [one["pid"] for one in row["ranks"]] == [
        line["pid"] for line in sorted(started, key=lambda line: line["rank"])
    ]
    return Explained(document, {line["rank"]: line["pid"] for line in started})


def test_ranks_that_are_well_raise_nothing(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """They are out of step now and then, as all are."""
    found = train(receiver, stubs, tmp_path, "500", "pace_us=2000", "sync_every=5")

    (row,) = found.document["communicators"]
    assert found.causes("collective_mismatch", "collective_stuck") == []
    assert [one["called"] for one in row["ranks"]] == [500] * 4
    assert all(one["in_flight_ns"] > 0 for one in row["ranks"])
    assert not [one for one in found.document["chains"] if "hung" in one["effect"]["kind"]]


def test_a_rank_that_stops_is_named(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """By the number that it did not call, while it lasts: nothing returned until all were killed."""
    found = train(
        *(receiver, stubs, tmp_path, "100", "pace_us=1000", "sync_every=1"),
        *("stop_rank=2", "stop_at=50"),
        limit_s=7,
    )

    ((incident, cause),) = found.causes(*HANGS)
    assert cause["kind"] == "collective_wait"
    assert cause["culprit"]["pid"] == found.pids[2]
    assert "all_reduce 50 of communicator" in cause["resource"]["name"]
    assert "not called by rank 2" in cause["resource"]["name"]
    # What it does instead has not ended, so that its account alone says what that is: it waits for a signal.
    kept = {one["kind"]: one for one in cause["via"]}
    assert kept["ipc"]["time_ns"] > 0.9 * cause["time_ns"]
    assert kept["ipc"]["culprit"]["pid"] == found.pids[2]
    assert "unexplained" not in kept or kept["unexplained"]["time_ns"] < 0.05 * cause["time_ns"]
    # Calls before that may have been slow for the same rank.
    effects = [one["effect"] for one in found.document["chains"] if one["id"] in incident["chains"]]
    hung = [one["pid"] for one in effects if one["kind"].startswith("hung_")]
    assert sorted(hung) == sorted(pid for rank, pid in found.pids.items() if rank != 2)
    assert incident["severity"] == "high"


def test_ranks_that_disagree_say_what_each_asked_for(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """Both signatures, and who differs."""
    found = train(
        *(receiver, stubs, tmp_path, "100", "pace_us=1000"),
        *("differ_rank=1", "differ_at=40"),
        limit_s=7,
    )

    ((incident, cause),) = found.causes(*HANGS)
    assert cause["kind"] == "collective_mismatch"
    assert cause["culprit"]["pid"] == found.pids[1]
    assert (
        "rank 0, rank 2, rank 3 asked for all_reduce of 1,024 float32 (sum)"
        in (cause["resource"]["name"])
    )
    assert "rank 1 asked for all_reduce of 1,025 float32 (sum)" in cause["resource"]["name"]
    assert incident["severity"] == "high"


def test_a_collective_that_never_ends_is_the_device_or_the_network(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """No rank is to blame. It takes ten seconds until that is said."""
    found = train(
        *(receiver, stubs, tmp_path, "100", "pace_us=1000", "never_from=33"),
        limit_s=15,
    )

    ((incident, cause),) = found.causes(*HANGS)
    assert (cause["kind"], cause["culprit"]) == ("collective_stuck", None)
    assert "all_reduce 33 of communicator" in cause["resource"]["name"]
    assert "all 4 ranks called it" in cause["resource"]["name"]
    assert incident["severity"] == "high"


@contextlib.contextmanager
def hog() -> Iterator[int]:
    """A stranger that burns CPU 0 and comes before all others, however busy the machine is."""
    command = [*FIRST, sys.executable, "-c", _HOG]
    # In a session of its own: what comes first is the whole session that the command is in.
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def test_what_kept_the_late_rank_is_in_the_chain(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """A hog has the CPU of one rank: the others wait for it, and that is why."""
    with hog() as pid:
        found = train(
            *(receiver, stubs, tmp_path, "40", "sync_every=1"),
            *("work_us=1000", "work_rank=3", "work_cpu=0"),
        )

    waits = [
        (cause, below)
        for _, cause in found.causes("collective_wait")
        for below in cause.get("via", ())
    ]
    assert {cause["culprit"]["pid"] for cause, _ in waits} == {found.pids[3]}
    assert pid in {below["culprit"]["pid"] for _, below in waits if below["culprit"]}
    (row,) = found.document["communicators"]
    kept = [one["kept_others_waiting_ns"] for one in row["ranks"]]
    assert max(kept) == kept[3] > 4 * sum(kept[:3])
