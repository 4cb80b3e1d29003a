"""
The captured program: a small training loop that one scenario makes slow.

Run as ``trainer.py LIBRARY NAME``. It prints the injected causes as one line of JSON; see
``truth.py``.
"""

import contextlib
import ctypes
import json
import os
import sys

from otel_gpu.demo.loop import Trainer, become_urgent, set_name
from otel_gpu.demo.scenarios import SCENARIOS, Scenario
from otel_gpu.demo.truth import lines_of


def train(library: str, scenario: Scenario) -> None:
    """Train, and print what was injected."""
    set_name("trainer")
    trainer = Trainer(ctypes.CDLL(library))
    # So that only injected causes delay the loop. Without permission it runs as it is.
    with contextlib.suppress(PermissionError):
        if scenario.is_fair:
            os.setpriority(os.PRIO_PROCESS, 0, -20)
        else:
            become_urgent(1)
    if scenario.is_pinned:
        os.sched_setaffinity(0, {trainer.cpu})
    scenario.run(trainer)
    truth = trainer.truth(scenario.name) | {"lines": lines_of(scenario)}
    sys.stdout.write(json.dumps(truth) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    train(sys.argv[1], SCENARIOS[sys.argv[2]])
