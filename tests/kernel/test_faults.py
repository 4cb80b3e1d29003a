"""Errors inside the agent: the command, the counts and the other parts never notice."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.kernel.agent import (
    Agent,
    calls,
    environment_for,
    losses,
    otel_gpu,
    points,
    state_of,
    total,
    wait_until,
)
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, copy_of_runtime, workload

pytestmark = pytest.mark.kernel

API = "cudaStreamSynchronize"
KEEP = {"OTEL_GPU_STORE_ENABLED": "on"}
CALLS = 5003


class Sabotaged(Agent):
    """An agent some of whose functions raise; see ``tests.chaos.sabotage``."""

    def __init__(self, places, receiver, command=(), **options):
        super().__init__(receiver, command, **options)
        run = self.command.index("otel_gpu")
        self.command[run : run + 1] = ["tests.chaos.sabotage", places]


@pytest.mark.parametrize(
    "place",
    [
        "otel_gpu.capture.session:Session._is_over@2",
        "otel_gpu.capture.session:Session._clock@2",
        "otel_gpu.capture.schedule:Schedule.run_due@1",
        "otel_gpu.capture.schedule:Schedule.wait_s@0",
        "otel_gpu.capture.session:Session._make_schedule@0",
        "otel_gpu.capture.processes.watchlist:Watchlist.discover@0",
        "otel_gpu.capture.session:Session._end@0",
        "otel_gpu.capture.bpf.programs:Programs.close@0",
        "otel_gpu.export.exports:Exports.shutdown@0",
        "otel_gpu.recorder.writer:StoreWriter.close@0",
        "otel_gpu.report.render.text.summary:Summary.print_final@0",
        "otel_gpu.cli.commands.run:exit_code_of@9",
    ],
)
def test_the_exit_code_is_the_commands_also_when_the_agent_fails(
    place: str, stubs: StubLibraries, tmp_path: Path
) -> None:
    """
    Wherever it fails once the command runs: the command makes all its calls, also with libraries
    that it loads later, and is waited for.
    """
    copies = [str(copy_of_runtime(tmp_path / str(number))) for number in range(3)]
    script = f"{workload('reopen')} close 503 {' '.join(copies)} && exit 23"
    environment = KEEP | {"OTEL_GPU_STORE_PATH": str(tmp_path / "store.db")}
    with Sabotaged(place, None, ["sh", "-c", script], env=environment) as agent:
        done = agent.wait()

    assert done.returncode == 23, done.stderr
    assert done.lines[-1]["cudaMalloc"] == 3 * 503
    if not place.endswith("@9"):
        assert "SabotageError" in done.stderr


def test_a_command_that_ends_later_than_the_agent_fails_is_waited_for(
    stubs: StubLibraries,
) -> None:
    """
    The agent is gone as a capture and holds no program in the kernel; SIGTERM reaches the command.
    """
    place = "otel_gpu.capture.session:Session._is_over@5"
    script = "trap 'exit 41' TERM; echo '{}'; while :; do read line; done"
    with Sabotaged(place, None, ["sh", "-c", script]) as agent:
        agent.next_line()
        wait_until(lambda: "goes on without it" in agent.stderr, "the failure")
        script_pid = int(
            Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children")
            .read_text()
            .split()[-1]
        )
        assert state_of(script_pid) not in (None, "T", "Z")
        wait_until(lambda: not held_programs(agent.process.pid), "the end of the programs")
        agent.process.terminate()
        done = agent.wait()

    assert done.returncode == 41


def held_programs(pid: int) -> list[str]:
    """Return the BPF programs that a process holds."""
    found = []
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            found += [line for line in entry.read_text().splitlines() if line.startswith("prog_id")]
        except OSError:
            continue
    return found


def test_an_observer_that_always_fails_costs_the_others_nothing(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """The store takes nothing: the exports have every call, and say what became of the store."""
    places = ",".join(
        f"otel_gpu.recorder.writer:StoreWriter.{name}" for name in ("observe", "observe_chain")
    )
    command = [workload("exact"), stubs.runtime, str(CALLS), "2", "7"]
    environment = KEEP | {"OTEL_GPU_STORE_PATH": str(tmp_path / "store.db")}
    with Sabotaged(places, receiver, command, env=environment) as agent:
        done = agent.wait()
    pid = done.lines[0]["pid"]

    assert done.returncode == 7
    assert calls(receiver, API, pid) == done.lines[0]["calls"][API]
    assert losses(receiver) == {}
    assert total(receiver, "otel_gpu.errors", otel_gpu__place="store") > 0
    assert done.stderr.count("Traceback") == 1
    assert "errors inside the agent cost some of what was captured: errors: store" in done.stderr


def test_errors_now_and_then_are_counted_where_they_were(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """
    Every third discovery and introduction, every 50th record that is enriched, every explanation,
    every stack fails: the counts are exact, the store has them too, and all say what failed.
    """
    store = tmp_path / "store.db"
    places = (
        "otel_gpu.capture.processes.watchlist:Watchlist.discover@0/3,"
        "otel_gpu.capture.processes.discovery:ProcessDiscovery.make_some@0/3,"
        "otel_gpu.pipeline:ExplainStage.observe@7/5,"
        "otel_gpu.stacks.user_stacks:UserStacks.resolve@3"
    )
    command = [workload("exact"), stubs.runtime, str(CALLS), "2", "7"]
    environment = KEEP | {"OTEL_GPU_STORE_PATH": str(store)}
    flags = ("--spans", "full")
    with Sabotaged(places, receiver, command, env=environment, flags=flags) as agent:
        done = agent.wait()
    pid = done.lines[0]["pid"]
    document = json.loads(otel_gpu("explain", "--store", store, "--json").stdout)
    said = otel_gpu("query", "--store", store, "SELECT * FROM v_losses").stdout

    assert done.returncode == 7
    assert calls(receiver, API, pid) == done.lines[0]["calls"][API]
    rows = {row["api"]: row["calls"] for row in document["apis"]}
    assert rows[API] == done.lines[0]["calls"][API]
    for place in ("discovery", "explain", "stacks"):
        assert total(receiver, "otel_gpu.errors", otel_gpu__place=place) > 0
        assert document["losses"][f"error_{place}"] > 0
        assert f"error_{place}" in said
    assert any("Errors inside the agent" in note for note in document["notes"])


def test_a_part_that_stays_broken_makes_the_exit_code_1(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """After a thousand errors it is switched off; a capture without a command ends with 1."""
    place = "otel_gpu.pipeline:ExplainStage.observe"
    with (
        subprocess.Popen(
            [workload("steady"), stubs.runtime, "1000", "60"],
            stdout=subprocess.DEVNULL,
            env=environment_for(None),
        ) as steady,
        Sabotaged(place, receiver, flags=("--pid", str(steady.pid), "--spans", "full")) as agent,
    ):
        receiver.wait_for(
            lambda: points(receiver, "otel_gpu.switched_off", otel_gpu__place="explain")
        )
        steady.kill()
        done = agent.wait()

    assert done.returncode == 1
    assert total(receiver, "otel_gpu.errors", otel_gpu__place="explain") == 1_000
    assert total(receiver, "otel_gpu.items.skipped", otel_gpu__place="explain") > 0
    assert "switched off: explain" in done.stderr
