"""The scenarios by name, and what each does."""

from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
RECORDINGS = FOLDER / "recordings"
# A scenario is over in about a second. Trends and counters are read more often than that.
CAPTURE_ENVIRONMENT = {"OTEL_GPU_CAPTURE_SNAPSHOT_INTERVAL_S": "0.2"}
CAPTURE_FLAGS = ("--spans=full", "--summary=never")


class Scenario(NamedTuple):
    """
    One way to be slow.

    ``about`` is what is done to the training loop. ``program`` is the source in this
    folder that does it.
    """

    name: str
    about: str
    program: str = "scenarios.c"

    @property
    def recording(self) -> Path:
        """The recording of it that comes with the package."""
        return RECORDINGS / f"{self.name}.otelgpu"


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("clean", "nothing is wrong"),
        Scenario("preemption", "a hog takes the CPU from a kernel launch, for 40 ms"),
        Scenario("late-wakeup", "the device is done, and a hog has the CPU for 40 ms more"),
        Scenario("cpu-quota", "a cgroup may use 10 ms of CPU time in every 100 ms"),
        Scenario("lock", "another thread holds the lock that a launch needs, for 40 ms"),
        Scenario("gil", "a C extension sleeps 40 ms and keeps Python's GIL", "gil.py"),
        Scenario("starved-loader", "data is late: a hog has the data loader's CPU for 40 ms"),
        Scenario("disk", "data is late: the data loader reads from the disk for about 40 ms"),
        Scenario("large-fork", "a process with 6 GiB mapped forks between two launches"),
        Scenario("memory-limit", "a cgroup is at its memory limit, and its page cache is dirty"),
        Scenario("stopped", "the process is stopped with SIGSTOP for 40 ms"),
        Scenario("gpu-wait", "the device has 40 ms more to do; nothing is wrong with the host"),
        Scenario("gpu-backpressure", "a launch polls for 40 ms until the device has room"),
        Scenario("first-call", "the first allocation takes 80 ms, as the first call often does"),
        Scenario("allocator-churn", "memory is allocated in every step, ever slower"),
        Scenario("two-causes", "a hog has the CPU for 40 ms, then another thread a lock for 20 ms"),
    )
}
