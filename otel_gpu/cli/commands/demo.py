"""
Run a small training loop that one known cause makes slow, capture it, and explain it. Needs root
and a C compiler, and no GPU: it builds a stand-in for the CUDA library. With --synthetic it needs
nothing and explains a recording of the scenario. Without a name it lists the scenarios. The capture
is also exported to the endpoint of OTEL_EXPORTER_OTLP_*.
"""

import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

from otel_gpu.cli.commands import JSON_HELP, Output, UsageError, add_file
from otel_gpu.config import Config
from otel_gpu.demo.build import DemoError, build
from otel_gpu.demo.scenarios import CAPTURE_ENVIRONMENT, CAPTURE_FLAGS, SCENARIOS, Scenario
from otel_gpu.demo.truth import describe

_OTEL_GPU = (sys.executable, "-m", "otel_gpu")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "scenario", nargs="?", metavar="SCENARIO", help="the scenario to run; default: list them"
    )
    parser.add_argument(
        "--synthetic", action="store_true", help="explain the recording that is included"
    )
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    add_file(parser, "--record", "keep the recording here")


def run(args: Namespace, config: Config, out: Output) -> int:  # noqa: ARG001 -- the protocol's
    """List the scenarios, or run and explain one."""
    if args.scenario is None:
        width = max(map(len, SCENARIOS)) + 2
        for scenario in SCENARIOS.values():
            out.line(f"{scenario.name:{width}}{scenario.about}")
        return 0
    if args.scenario not in SCENARIOS:
        raise UsageError(f"unknown scenario {args.scenario!r}", hint="otel-gpu demo lists them")
    if args.synthetic and args.record:
        raise UsageError("--record needs a capture: leave out --synthetic")
    scenario = SCENARIOS[args.scenario]
    out.note(f"{scenario.name}: {scenario.about}")
    if args.synthetic:
        return _explain(scenario.recording, as_json=args.json)
    with tempfile.TemporaryDirectory(prefix="otel-gpu-demo-") as folder:
        recording = args.record or Path(folder) / scenario.recording.name
        _capture(scenario, folder=Path(folder), recording=recording, out=out)
        return _explain(recording, as_json=args.json)


def _capture(scenario: Scenario, folder: Path, recording: Path, out: Output) -> None:
    command = build(scenario, folder)
    with scenario.prepared_host() as environment:
        result = subprocess.run(
            [*_OTEL_GPU, "run", f"--record={recording}", *CAPTURE_FLAGS, "--", *command],
            env=CAPTURE_ENVIRONMENT | os.environ | environment,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    if result.returncode:
        hint = f"play a recording of it: otel-gpu demo {scenario.name} --synthetic"
        raise DemoError("cannot run or capture the scenario on this host", hint=hint)
    out.note("the program reports what was done to it:")
    for line in describe(result.stdout):
        out.note(f"  {line}")


def _explain(recording: Path, *, as_json: bool) -> int:
    # Run the command that an operator would type.
    command = (*_OTEL_GPU, "explain", str(recording), *(["--json"] if as_json else []))
    return subprocess.run(command, check=False).returncode
