"""The program of the scenarios that only tests run; see ``otel_gpu/demo/trainer.py``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from otel_gpu.demo.trainer import train
from tests.scenarios.all_scenarios import SCENARIOS

if __name__ == "__main__":
    train(sys.argv[1], SCENARIOS[sys.argv[2]])
