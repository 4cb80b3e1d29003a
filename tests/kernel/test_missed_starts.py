"""Processes that are not watched from their first call on are counted, and there are few."""

import contextlib
import json
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.kernel.agent import CALL_DURATION, Agent, calls, losses, wait_until
from tests.receiver import OtlpReceiver
from tests.stubs.build import copy_of_runtime, odd_library, workload

pytestmark = pytest.mark.kernel

NOT_WATCHED = "not_watched_from_start"
# Other programs of the host are captured as well, and can fill the maps.
FULL = ("processes_full", "threads_full", "series_full", "lifecycle_ring_full")
PROCESSES, CALLS = 211, 7
# How long an agent may take on a busy machine, where it captures what others run, too.
LATE_S = 180.0


def test_short_processes_are_seen_under_all(receiver: OtlpReceiver, tmp_path: Path) -> None:
    """
    Processes, each gone within milliseconds, use a library that nobody used before. Whoever ended
    before it was looked at leads to the library all the same, so that only the first ones are
    missed, and these are counted. All of hundreds that come later are complete.
    """
    library = copy_of_runtime(tmp_path)
    with Agent(receiver, flags=["--all", "--duration", "600"]) as agent:
        receiver.wait_for(receiver.metrics)
        first: set[int] = set()
        until_s = time.monotonic() + LATE_S
        # How many come too early depends on how soon the agent gets a CPU.
        while len(missed := incomplete(receiver, first)) == len(first):
            assert time.monotonic() < until_s, f"all of {len(first)} processes are missed"
            first |= burst(library, 11)
        later = burst(library, PROCESSES)
        assert len(later) == PROCESSES
        # Records that are not read when the agent ends count as something else.
        with contextlib.suppress(TimeoutError):
            wait_until(
                lambda: (
                    not incomplete(receiver, later)
                    and len(incomplete(receiver, first)) <= losses(receiver).get(NOT_WATCHED, 0)
                ),
                "the last record",
                LATE_S,
            )
        agent.signal(2)
        finished = agent.wait()

    assert finished.returncode == 0
    lost = losses(receiver)
    missed = incomplete(receiver, first)
    assert len(missed) <= lost.get(NOT_WATCHED, 0)
    assert len(incomplete(receiver, later)) <= sum(lost.get(reason, 0) for reason in FULL)
    assert not [pid for pid in later if f"({pid}): " in finished.stderr]


def burst(library: Path, processes: int) -> set[int]:
    """Run short processes, four at a time; return their pids."""
    one = f"{workload('first_call')} direct {CALLS} {library}"
    done = subprocess.run(
        ["sh", "-c", f"seq {processes} | xargs -P 4 -I{{}} {one}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {json.loads(line)["pid"] for line in done.stdout.splitlines()}


def incomplete(receiver: OtlpReceiver, pids: set[int]) -> set[int]:
    """Return the processes whose calls are not all counted."""
    found = Counter[int]()
    for key, point in receiver.metrics().items():
        if key.name == CALL_DURATION and key.pid and key.attribute("gpu.cuda.api") == "cudaMalloc":
            found[key.pid] += point.point.count
    assert all(found[pid] <= CALLS for pid in pids)
    return {pid for pid in pids if found[pid] != CALLS}


@pytest.mark.parametrize("libc", ["glibc", "musl"])
@pytest.mark.parametrize("how", ["path", "linked", "memory", "deleted", "replaced"])
def test_no_call_of_a_library_is_missed_wherever_it_is(
    receiver: OtlpReceiver, tmp_path: Path, libc: str, how: str
) -> None:
    """It was told by each dynamic linker, and reached through the process."""
    if libc == "musl" and shutil.which("musl-gcc") is None:
        pytest.skip("musl-gcc (musl-tools) is not installed")
    program, runtime = odd_library(is_musl=libc == "musl")
    library = shutil.copy(runtime, tmp_path)
    preload = ["env", f"LD_PRELOAD={library}"] if how == "linked" else []
    with Agent(receiver, [*preload, program, how, CALLS, library]) as agent:
        finished = agent.wait()

    assert finished.returncode == 0, finished.stderr
    (line,) = finished.lines
    assert calls(receiver, "cudaMalloc", line["pid"]) == line["cudaMalloc"] == CALLS
    assert losses(receiver) == {}


# The links in /proc/PID/map_files are for those who have one of these.
WITHOUT_LINKS = ("setpriv", "--bounding-set", "-sys_admin,-checkpoint_restore")


def root_with(folder: Path, program: Path, library: Path) -> Path:
    """Make a folder that a program can have as its root, with the library in it."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    needed = [word for word in listed.split() if word.startswith("/")]
    for path in map(Path, needed):
        place = folder / path.relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    shutil.copy(program, folder / "program")
    shutil.copy(library, folder / "libcudart.so.12")
    return folder


def test_a_chroot_costs_no_call_where_links_of_maps_may_not_be_used(
    receiver: OtlpReceiver, tmp_path: Path
) -> None:
    """Paths in maps begin at the root of the mount namespace, and not at that of the process."""
    root = root_with(tmp_path, *odd_library())
    command = ["chroot", root, "/program", "path", CALLS, "/libcudart.so.12"]
    with Agent(receiver, command, inside=WITHOUT_LINKS) as agent:
        finished = agent.wait()

    (line,) = finished.lines
    assert calls(receiver, "cudaMalloc", line["pid"]) == CALLS
    assert losses(receiver) == {}


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_library_that_cannot_be_reached_is_counted(
    receiver: OtlpReceiver, tmp_path: Path, how: str
) -> None:
    """Its file is gone before it is looked at, and the links of maps may not be used."""
    program, runtime = odd_library()
    library = shutil.copy(runtime, tmp_path / "libcudart.so.12")
    with subprocess.Popen(
        [program, how, str(CALLS), library, "wait"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        process.stdout.readline()
        flags = ["--pid", str(process.pid)]
        with Agent(receiver, flags=flags, inside=WITHOUT_LINKS) as agent:
            receiver.wait_for(receiver.metrics)
            process.communicate("\n")
            finished = agent.wait()

    assert calls(receiver, "cudaMalloc", process.pid) == 0
    assert losses(receiver) == {NOT_WATCHED: 1}
    assert f"odd_library ({process.pid}): its library could not be opened" in finished.stderr
