"""Counting under load: every call of several threads, as fast as they can make them."""

import json
import subprocess

from benchmarks.result import Result
from benchmarks.subjects import environment_for
from tests.kernel.agent import Agent, calls, losses
from tests.receiver import OtlpReceiver
from tests.stubs.build import stub_libraries, workload

WANTED_PER_S = 300_000
THREADS = 4


def run(*, quick: bool = False) -> list[Result]:
    """Compare the histograms' counts with the calls made, and say how fast they came."""
    calls_wanted = 300_007 if quick else 3_000_017
    command = [workload("exact"), stub_libraries().runtime, str(calls_wanted), str(THREADS)]
    with OtlpReceiver() as receiver:
        with Agent(receiver, command) as agent:
            (line,) = agent.wait(300).lines
        counted = sum(calls(receiver, api, line["pid"]) for api in line["calls"])
        lost = losses(receiver)
    bare = subprocess.run(
        command, env=environment_for(None), stdout=subprocess.PIPE, check=True, text=True
    )
    bare_per_s = calls_wanted / (json.loads(bare.stdout)["elapsed_ns"] / 1e9)
    per_s = calls_wanted / (line["elapsed_ns"] / 1e9)
    return [
        Result(
            what=f"calls counted, {THREADS} threads unthrottled",
            value=counted,
            unit="calls",
            floor=calls_wanted,
            floor_is="calls made",
            ratio=counted / calls_wanted,
            bound="exactly 1",
            held=counted == calls_wanted,
            note=(
                f"at {per_s:,.0f} calls/s ({per_s / WANTED_PER_S:.2f} of the {WANTED_PER_S:,} "
                f"in the bound; unprobed the program makes {bare_per_s:,.0f}); losses {lost}"
            ),
        )
    ]
