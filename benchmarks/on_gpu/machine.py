"""What the machine is, and whether the tests that need a GPU pass there."""

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

from benchmarks.host import describe_host
from benchmarks.on_gpu.setting import Setting

_ROOT = Path(__file__).resolve().parents[2]
_QUERY = "name,driver_version,memory.total,clocks.sm,uuid"
_VERSIONS = (
    "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.get_device_name(0))"
)


def describe_machine(setting: Setting, _seconds: float) -> object:
    """Return the kernel, the devices, the driver and PyTorch."""
    return {
        "host": describe_host(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "devices": _answer("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"),
        "torch": _answer(setting.torch_python, "-c", _VERSIONS) if setting.torch_python else None,
        "uses_stubs": setting.uses_stubs,
    }


def check_gpu(setting: Setting, seconds: float) -> object:
    """
    Run ``make check-gpu``, and return how many tests passed, failed and were skipped.

    Raises:
        RuntimeError: One failed, or with a GPU none ran.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "tests/gpu", "-q", "--tb=short"]
        required = {} if setting.uses_stubs else {"OTEL_GPU_TEST_REQUIRE": "kernel,gpu"}
        ended = subprocess.run(
            [*command, "-p", "no:cacheprovider", f"--junitxml={report}"],
            cwd=_ROOT,
            env=os.environ | required,
            stdout=setting.log,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
        # It was just written by pytest.
        suite = ET.parse(report).getroot().find("testsuite")  # noqa: S314
    if suite is None:
        raise RuntimeError(f"pytest ended with {ended.returncode} and no report")
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    if ended.returncode or (counts["tests"] == counts["skipped"] and not setting.uses_stubs):
        raise RuntimeError(f"pytest ended with {ended.returncode}: {counts}")
    return counts


def _answer(*command: str) -> str:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        return str(error)
    return (ended.stdout if not ended.returncode else ended.stderr).strip()
