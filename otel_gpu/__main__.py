"""``python -m otel_gpu`` is the same as ``otel-gpu``."""

import sys

from otel_gpu.cli import main

if __name__ == "__main__":
    sys.exit(main())
