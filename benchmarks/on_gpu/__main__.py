"""
Runs all parts: ``python -m benchmarks.on_gpu [--stubs] [--seconds N] [PART...]``.

``on-gpu.json`` and ``on-gpu.log`` are written to the folder that OUT names, else to ``on-gpu``. The
first is there after each part, so a run that is cut short leaves what it has found. The exit code
is 1 when a part failed; the others run all the same.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.on_gpu.machine import check_gpu, describe_machine
from benchmarks.on_gpu.prologues import list_prologues, measure_pairs
from benchmarks.on_gpu.setting import Run, Setting
from benchmarks.on_gpu.steps import measure_decode, measure_training
from tests.stubs.build import BEGIN_AS_DRIVER

LIMIT_S = 440.0


class Part(NamedTuple):
    """
    A part of the run.

    ``seconds`` is how long it may take in a whole run; ``run`` is given that, or what is left, and
    returns what can be written as JSON.
    """

    name: str
    seconds: float
    run: Run


# Later work adds its own here: what needs a GPU to be known.
PARTS = (
    Part("machine", 20, describe_machine),
    Part("prologues", 20, list_prologues),
    Part("pair_costs", 40, measure_pairs),
    Part("decode_step", 95, measure_decode),
    Part("training_step", 95, measure_training),
    Part("check_gpu", 170, check_gpu),
)


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.on_gpu", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(p.name for p in PARTS))
    parser.add_argument("--stubs", action="store_true", help="stand-ins instead of a device")
    parser.add_argument("--seconds", type=float, default=LIMIT_S, help="for all parts together")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - {part.name for part in PARTS}:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    if arguments.stubs:
        os.environ.setdefault(BEGIN_AS_DRIVER, "1")
    folder = Path(os.environ.get("OUT") or "on-gpu")
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [part for part in PARTS if not arguments.parts or part.name in arguments.parts]
    end_s = time.monotonic() + arguments.seconds
    found: dict[str, Any] = {"started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    found["parts"] = parts = {}
    with (folder / "on-gpu.log").open("w") as log, tempfile.TemporaryDirectory() as scratch:
        setting = Setting(uses_stubs=arguments.stubs, log=log, scratch=Path(scratch))
        for part in chosen:
            share = part.seconds * arguments.seconds / LIMIT_S
            parts[part.name] = _run(part, setting, min(share, end_s - time.monotonic()))
            (folder / "on-gpu.json").write_text(json.dumps(found, indent=1) + "\n")
    return 1 if any("error" in result for result in parts.values()) else 0


def _run(part: Part, setting: Setting, seconds: float) -> dict[str, Any]:
    if seconds <= 0:
        setting.say(f"{part.name}: left out, as there is no time left")
        return {"error": "left out: there was no time left", "seconds": 0}
    setting.say(f"{part.name}: at most {seconds:.0f} s")
    start_s = time.monotonic()
    result: dict[str, Any]
    try:
        result = {"result": part.run(setting, seconds)}
    except Exception as error:  # noqa: BLE001 -- the other parts are to run all the same
        traceback.print_exc(file=setting.log)
        result = {"error": f"{type(error).__name__}: {error}"}
    result["seconds"] = round(time.monotonic() - start_s, 1)
    setting.say(f"{part.name}: {result.get('error', 'done')}, after {result['seconds']} s")
    return result


if __name__ == "__main__":
    sys.exit(main())
