"""A frozen cgroup: stopped by its freezer, by nobody's signal, and not by whoever thaws it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.agent import FIRST, otel_gpu
from tests.stubs.build import stub_libraries

pytestmark = [pytest.mark.kernel, pytest.mark.alone]

MOUNTS = Path("/proc/mounts")
# By the version of cgroups: the file that freezes, and what is written into it.
FREEZERS = {1: ("freezer.state", "FROZEN", "THAWED"), 2: ("cgroup.freeze", "1", "0")}
FROZEN_S = 0.6
# Calls before and after; a process of its own freezes and thaws it in between, and prints for how long.
# It works, as version 1 leaves a thread that waits in its wait.
PROGRAM = """
import ctypes, subprocess, sys, time
cuda = ctypes.CDLL(sys.argv[1])
thawer = subprocess.Popen([sys.executable, "-c", sys.argv[2]], stdin=subprocess.PIPE)
for number in range(200):
    cuda.cudaDeviceSynchronize()
    if number == 100:
        thawer.stdin.close()
    end = time.thread_time() + 0.002
    while time.thread_time() < end:
        pass
thawer.wait()
"""
THAWER = """
import sys, time
from pathlib import Path
sys.stdin.read()
freezer = Path({freezer!r})
begun_ns = time.monotonic_ns()
freezer.write_text({freeze!r})
time.sleep({seconds})
freezer.write_text({thaw!r})
print(time.monotonic_ns() - begun_ns, flush=True)
"""


def mounted(version: int) -> Path | None:
    """Return where this version of cgroups can freeze."""
    for line in MOUNTS.read_text(encoding="ascii").splitlines():
        _, folder, kind, options, *_ = line.split()
        if kind == "cgroup2" and version == 2:
            return Path(folder)
        if kind == "cgroup" and version == 1 and "freezer" in options.split(","):
            return Path(folder)
    return None


@pytest.fixture(params=FREEZERS)
def group(request: pytest.FixtureRequest) -> Iterator[tuple[Path, int]]:
    """A cgroup that can be frozen, in whatever this machine mounts."""
    root = mounted(request.param)
    if root is None:
        pytest.skip(f"no freezer of cgroup version {request.param} is mounted")
    folder = root / "otel-gpu-test-frozen"
    folder.mkdir()
    if not (folder / FREEZERS[request.param][0]).exists():
        folder.rmdir()
        pytest.skip(f"cgroup version {request.param} of this kernel has no freezer")
    yield folder, request.param
    folder.rmdir()


def test_a_frozen_process_was_frozen_and_nobody_sent_it_a_signal(
    group: tuple[Path, int], tmp_path: Path
) -> None:
    """With the time that it was; who thawed it is not to blame."""
    folder, version = group
    file, freeze, thaw = FREEZERS[version]
    thawer = THAWER.format(freezer=str(folder / file), freeze=freeze, thaw=thaw, seconds=FROZEN_S)
    # The helper is started first, and is in the group too unless it leaves it.
    thawer = f"from pathlib import Path\nPath({str(folder.parent / 'cgroup.procs')!r}).write_text('0')\n{thawer}"
    written = tmp_path / "frozen.json"
    joins = ("sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh")
    program = (*joins, sys.executable, "-c", PROGRAM, str(stub_libraries().runtime), thawer)
    # What else the machine does must not take more of its time than the freezer.
    explain = ("explain", "--json", "--output", written, "--", *program)
    done = otel_gpu(*explain, inside=FIRST)
    assert done.returncode == 0, done.stderr
    document = json.loads(written.read_text(encoding="utf-8"))

    (process,) = (one for one in document["processes"] if one["time_tree"])
    branch = next(one for one in process["time_tree"]["children"] if one["state"] == "stopped")
    assert branch["time_ns"] == pytest.approx(int(done.stdout), rel=0.1)
    assert "stopped" in [one["name"] for one in process["verdict_bounds"]]
    incident = document["incidents"][0]
    cause = incident["causes"][0]
    assert (incident["severity"], cause["kind"], cause["culprit"]) == ("high", "frozen", None)
    assert cause["time_ns"] == pytest.approx(FROZEN_S * 1e9, rel=0.1)
    assert "cgroup.freeze" in incident["advice"][0]
    assert not any("SIGSTOP" in advice for advice in incident["advice"])
