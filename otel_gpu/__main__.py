"""``python -m otel_gpu`` is the same as ``otel-gpu``."""

import sys

from otel_gpu.cli import program

if __name__ == "__main__":
    sys.exit(program())
