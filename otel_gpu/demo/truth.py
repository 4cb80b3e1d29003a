"""What a scenario says that it did, which is what an explanation has to find."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from otel_gpu.demo.loop import Function, Helper, Trainer, compute, place_of, sleep
from otel_gpu.demo.steady import wait_for_loader

LINES: Mapping[str, Mapping[str, Function]] = {
    "preemption": {"run_queue": Trainer.launch},
    "two-causes": {"run_queue": Trainer.launch},
    "late-wakeup": {"run_queue": sleep},
    "cpu-quota": {"run_queue": Trainer.launch},
    "starved-loader": {"ipc": Helper.await_report},
    "stopped": {"stopped": compute},
    "busy-loader": {"ipc": wait_for_loader},
    "steady-loader": {"ipc": wait_for_loader},
    "steady-contention": {"run_queue": compute},
    "noisy-neighbour": {"run_queue": compute},
    "long-synchronize": {"run_queue": sleep},
    "steady-sleep": {"sleep": sleep},
}
"""Where the loop is while it loses time, by scenario and the kind of what it loses it to."""


class Outcome(NamedTuple):
    """
    What a report has to say of a scenario.

    Attributes:
        verdict: What bounds the loop.
        bounds: The classes that the verdict names at least.
        cause: The kind of the cause that the first advice is about; empty: there is nothing to advise about.
        by: Who is behind the class that the scenario makes: the name of a thread, or a kind of cause.
        is_close: How fast the disk is, or how the scheduler divides a CPU, decides between this verdict and
            ``mixed``.
    """

    verdict: str
    bounds: tuple[str, ...]
    cause: str = ""
    by: str = ""
    is_close: bool = False


OUTCOMES: Mapping[str, Outcome] = {
    "clean": Outcome("gpu-bound", ("gpu",)),
    "preemption": Outcome("mixed", ("gpu", "starved"), "preemption", "hog"),
    "late-wakeup": Outcome("mixed", ("gpu", "starved"), "run_queue", "hog"),
    "cpu-quota": Outcome("cpu-starved", ("starved",), "cpu_quota", "cpu_quota", is_close=True),
    "lock": Outcome("mixed", ("gpu", "lock"), "sleep", "holder"),
    "gil": Outcome("gpu-bound", ("gpu", "lock"), "sleep", "holder"),
    "starved-loader": Outcome("mixed", ("gpu", "data"), "run_queue", "loader"),
    "disk": Outcome("mixed", ("gpu", "data"), "io", "loader", is_close=True),
    "large-fork": Outcome("cpu-bound", ("cpu", "gpu"), "fork", is_close=True),
    "memory-limit": Outcome("gpu-bound", ("gpu", "memory"), "reclaim", is_close=True),
    "stopped": Outcome("mixed", ("gpu", "stopped"), "stopped", "stopper"),
    "gpu-wait": Outcome("gpu-bound", ("gpu",), "gpu_wait"),
    "gpu-backpressure": Outcome("gpu-bound", ("gpu",), "gpu_backpressure"),
    "first-call": Outcome("gpu-bound", ("gpu", "memory"), "first_call"),
    "allocator-churn": Outcome("memory-bound", ("memory", "gpu"), "allocator_churn"),
    "two-causes": Outcome("mixed", ("gpu", "starved"), "preemption", "hog"),
    "garbage-collection": Outcome("cpu-bound", ("cpu", "gpu"), "host_work"),
    "busy-loader": Outcome("data-bound", ("data",), "host_work", "loader"),
    "slow-python": Outcome("cpu-bound", ("cpu",), "host_work"),
    "gil-holder": Outcome("lock-bound", ("lock",), "gil", "holder"),
    "steady-loader": Outcome("data-bound", ("data",), "host_work", "loader"),
    "steady-sleep": Outcome("idle", ("sleep",), "sleep"),
    "steady-host-work": Outcome("cpu-bound", ("cpu",), "host_work"),
    "steady-contention": Outcome(
        "cpu-bound", ("cpu", "starved"), "run_queue", "hog", is_close=True
    ),
    "full-queue": Outcome("gpu-bound", ("gpu",)),
    "long-synchronize": Outcome("mixed", ("gpu", "starved"), "run_queue", "hog"),
    "checkpoint": Outcome("gpu-bound", ("gpu",), "io", is_close=True),
    "noisy-neighbour": Outcome(
        "cpu-bound", ("cpu", "starved"), "run_queue", "neighbour", is_close=True
    ),
    "idle-server": Outcome("idle", ("idle",)),
    "remote-read": Outcome("data-bound", ("data",), "network"),
    "memory-leak": Outcome("gpu-bound", ("gpu",), "leak"),
    "memory-fragmentation": Outcome("gpu-bound", ("gpu",), "fragmentation"),
    "memory-exhaustion": Outcome("gpu-bound", ("gpu",), "exhausted"),
    "device-shared": Outcome("gpu-bound", ("gpu",), "other_process"),
    "empty-cache": Outcome("memory-bound", ("memory", "gpu"), "empty_cache"),
    "allocator-bypass": Outcome("gpu-bound", ("gpu",), "allocator_bypass"),
    "healthy-memory": Outcome("gpu-bound", ("gpu",)),
}
"""What a report says of each scenario, on a machine that does nothing else."""


def describe(line: str) -> Iterator[str]:
    """Say in words what a scenario's line of JSON says was done, one line per effect or loss."""
    document = json.loads(line)
    effects, losses = document["effects"], document.get("losses", ())
    if memory := document.get("memory"):
        asked, held = (
            "{function} {file}:{last_line}".format(**memory[of]) for of in ("asked", "held")
        )
        yield f"a request for memory in {asked} failed: {memory['cause']}, by what {held} holds"
    elif not effects and not losses:
        yield "nothing was done to it"
    for loss in losses:
        yield f"in all its steps together: {_describe(loss)}"
    for number, effect in enumerate(effects, 1):
        causes = ", then ".join(map(_describe, effect["causes"]))
        duration_ns = effect["end_ns"] - effect["start_ns"]
        yield (
            f"{number}. {effect['kind'].replace('_', ' ')} of {duration_ns / 1e6:.1f} ms "
            f"({effect['api']}): {causes}"
        )


def lines_of(name: str) -> dict[str, dict[str, Any]]:
    """Return the places of a scenario where the loop is while it loses time, by its kind."""
    found = LINES.get(name, {})
    return {kind: place_of(function, lines=None) for kind, function in found.items()}


def _describe(cause: dict[str, Any]) -> str:
    words = f"{cause['kind']} {cause['time_ns'] / 1e6:.1f} ms"
    if resource := cause.get("resource"):
        words += f" for {resource}"
    if pid := cause["pid"]:
        words += f" by thread {cause.get('tid', pid)} of process {pid}"
    if place := cause.get("place"):
        words += " in {function} {file}:{last_line}".format(**place)
    if via := cause.get("via"):
        words += f", which had {_describe(via)}"
    return words
