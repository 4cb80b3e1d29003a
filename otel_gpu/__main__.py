"""``python -m otel_gpu`` is the same as ``otel-gpu``."""

import sys

from otel_gpu.capture.processes.inherited import start_isolated

if __name__ == "__main__":
    start_isolated()
    # Before that, PYTHONPATH can lead to other modules of the same names.
    from otel_gpu.cli import program

    sys.exit(program())
