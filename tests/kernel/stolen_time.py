"""Time that a virtual machine was kept from running."""

import os
from pathlib import Path


def read_stolen_ns() -> int:
    """Return for how long other machines had our CPUs so far, as far as the kernel was told."""
    fields = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
    return int(fields[8]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
