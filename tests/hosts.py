"""What the marked tests need, and whether this host has it."""

import ctypes.util
import os
import platform
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from otel_gpu.procfs.mapped_files import FileId, file_of
from tests.backends import builds

ROOT = Path(__file__).resolve().parent.parent
MARKERS = ("kernel", "gpu", "collector", "browser", "backends")
# NVIDIA's own driver library, where `make test` could fetch it from Debian.
LIBCUDA = ROOT / ".output" / "tests" / "libcuda" / "libcuda.so.1"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def required() -> frozenset[str]:
    """Markers whose tests may not be skipped here: ``OTEL_GPU_TEST_REQUIRE``."""
    names = os.environ.get("OTEL_GPU_TEST_REQUIRE", "").replace(" ", "").split(",")
    return frozenset(name for name in names if name)


def missing_for(marker: str) -> str | None:
    """The first thing that tests with this marker need and this host lacks."""
    return {
        "kernel": _missing_for_kernel,
        "gpu": _missing_for_gpu,
        "collector": _missing_rotel,
        "browser": _missing_browser,
        "backends": _missing_backends,
    }[marker]()


def file_at(path: Path) -> FileId:
    """Return a file as /proc/PID/maps has it."""
    with path.open("rb") as stream:
        return file_of(stream.fileno())


def find_browser() -> str | None:
    """Where Chromium is; None where it is not."""
    return next(filter(None, map(shutil.which, CHROMIUM)), None)


def _missing_for_kernel() -> str | None:
    objects = ROOT / "otel_gpu" / "_bpf"
    if os.geteuid() != 0:
        return "this user is not root"
    if not Path("/sys/kernel/btf/vmlinux").exists():
        return "the kernel has no BTF"
    if ctypes.util.find_library("bpf") is None:
        return "libbpf is not installed"
    if not list(objects.glob(f"*.{platform.machine()}.bpf.o")):
        return f"no BPF object for {platform.machine()} is built (make bpf)"
    if shutil.which("gcc") is None:
        return "gcc, which builds the stub libraries, is not installed"
    return None


def _missing_for_gpu() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return "there is no nvidia-smi"
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    if listed.returncode != 0 or "GPU" not in listed.stdout:
        return "nvidia-smi lists no GPU"
    return None


def _missing_rotel() -> str | None:
    return None if find_spec("rotel") else "the rotel wheel is not installed"


def _missing_browser() -> str | None:
    return None if find_browser() else "there is no Chromium (Debian package chromium)"


def _missing_backends() -> str | None:
    if reason := builds.missing():
        return reason
    # The first time they take minutes to build, so they are asked for by name.
    asked_for = "backends" in required()
    return None if asked_for else "these run Jaeger, a Collector and Prometheus: make test-backends"
