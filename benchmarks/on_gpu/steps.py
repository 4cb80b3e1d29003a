"""What a step of a program takes with nothing, with probes at entries or sites, and preloaded."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Self

from benchmarks.on_gpu.intervals import interval_of
from benchmarks.on_gpu.setting import Setting
from benchmarks.subjects import agent_on
from otel_gpu.capture.preload.library import with_preload
from tests.receiver import OtlpReceiver
from tests.stubs.build import WORKLOADS, workload

_PROGRAM = WORKLOADS / "gpu_steps.py"
_MIN_ROUNDS = 3
# So long are the steps of one way in one round, at most, and so many.
_MEASURED_S = 0.6
_MAX_STEPS = 100_000
_WARM_UP_STEPS = 20
_ANSWER_LIMIT_S = 60.0
# What the agent is told, by way; with nothing there is none.
_SETTINGS: Mapping[str, Mapping[str, str] | None] = {
    "nothing": None,
    "entries": {"OTEL_GPU_CAPTURE_PROBE_SITES": "false"},
    "sites": {"OTEL_GPU_CAPTURE_PROBE_SITES": "true"},
    "preload": {},
}


class Program:
    """A program that makes as many steps as it is asked for and says how many ns they took."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def __enter__(self) -> Self:
        self._read()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        """Its pid."""
        return self._process.pid

    def step_ns(self, steps: int) -> float:
        """Have it make steps, and return the mean time of one."""
        assert self._process.stdin
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        return self._read() / steps

    def _read(self) -> int:
        assert self._process.stdout
        if not select.select([self._process.stdout], [], [], _ANSWER_LIMIT_S)[0]:
            raise TimeoutError(f"{self._process.args!r} says nothing for {_ANSWER_LIMIT_S} s")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()}")
        return int(line)


def measure_decode(setting: Setting, seconds: float) -> object:
    """Measure a step of an eager decode loop; of stand-ins, a call of the runtime."""
    return _measure(setting, "decode", seconds)


def measure_training(setting: Setting, seconds: float) -> object:
    """Measure a training step; of stand-ins, a call of the driver."""
    return _measure(setting, "train", seconds)


def _measure(setting: Setting, kind: str, seconds: float) -> object:
    end_s = time.monotonic() + seconds
    command = _command(setting, kind)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    with ExitStack() as stack:
        receiver = stack.enter_context(OtlpReceiver())
        bare = stack.enter_context(Program(command, plain))
        preloaded = stack.enter_context(Program(command, with_preload(plain)))
        measured_s = min(_MEASURED_S, seconds / 100)
        rounds: list[dict[str, float]] = []
        longest_s = 0.0
        while len(rounds) < _MIN_ROUNDS or time.monotonic() + longest_s < end_s:
            start_s = time.monotonic()
            ways = list(_SETTINGS)
            # No way has always the same place in a round.
            turn = len(rounds) % len(ways)
            rounds.append(
                {
                    way: _one(way, preloaded if way == "preload" else bare, measured_s, receiver)
                    for way in (*ways[turn:], *ways[:turn])
                }
            )
            longest_s = max(longest_s, time.monotonic() - start_s)
    return {
        "command": [*command],
        **{way: _figures(way, rounds) for way in _SETTINGS},
    }


def _command(setting: Setting, kind: str) -> Sequence[str]:
    if setting.torch_python:
        return (setting.torch_python, str(_PROGRAM), kind)
    if not setting.uses_stubs:
        raise RuntimeError(f"{sys.executable} has no PyTorch that sees a GPU")
    runtime, driver = setting.libraries[:2]
    if kind == "decode":
        return (str(workload("timed")), str(runtime))
    return (str(workload("timed_function")), str(driver), "cuStreamSynchronize")


def _one(way: str, program: Program, measured_s: float, receiver: OtlpReceiver) -> float:
    settings = _SETTINGS[way]
    with ExitStack() as stack:
        if settings is not None:
            stack.enter_context(agent_on(program.pid, receiver, env=settings))
        program.step_ns(_WARM_UP_STEPS)
        steps = round(measured_s * 1e9 / program.step_ns(_WARM_UP_STEPS))
        return program.step_ns(min(max(steps, _WARM_UP_STEPS), _MAX_STEPS))


def _figures(way: str, rounds: Sequence[Mapping[str, float]]) -> object:
    return {
        "step_ns": interval_of([one[way] for one in rounds]),
        "added_ns": interval_of([one[way] - one["nothing"] for one in rounds]),
        "times_nothing": interval_of([one[way] / one["nothing"] for one in rounds]),
    }
