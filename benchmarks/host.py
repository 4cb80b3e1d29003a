"""Says on what machine a figure was measured; without that it means nothing."""

import os
import platform
from pathlib import Path


def describe_host() -> str:
    """Return processor, CPUs, kernel, Python and load in one line."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{_processor()}, {os.cpu_count()} CPUs{_virtual()}, Linux {platform.release()}, "
        f"Python {platform.python_version()}, load {load}"
    )


def _processor() -> str:
    for line in _lines("/proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _virtual() -> str:
    flags = next((line for line in _lines("/proc/cpuinfo") if line.startswith("flags")), "")
    return " (virtual machine)" if " hypervisor" in flags else ""


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
