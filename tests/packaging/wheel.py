"""Builds wheels of this checkout as `make wheel` does, from copies of it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What a fresh clone does not have, or does not need for a wheel.
NOT_COPIED = (
    ".git", ".venv", ".output", ".*_cache", "__pycache__", "_bpf", "_preload", "build", "dist",
)  # fmt: skip
OBJECTS = ("bpf/.output", "otel_gpu/_bpf")


def copy_checkout(folder: Path) -> Path:
    """
    Copy what a wheel is made of; of what is built the BPF objects, as `make bpf` leaves them.

    Where there are none, or old ones, a wheel compiles them.
    """
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*NOT_COPIED), symlinks=True)
    for name in OBJECTS:
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, folder / name)
    return folder


def build(kind: str, checkout: Path, folder: Path, env: Mapping[str, str] | None = None) -> Path:
    """
    Build a wheel or an sdist.

    Args:
        kind: ``wheel`` or ``sdist``.
        checkout: The source tree.
        folder: Where it is put; must be new.
        env: Variables beside this process's.

    Returns:
        The file.
    """
    environment = os.environ | {"PYTHONPATH": ""} | dict(env or {})
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    done = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.iterdir()
    return built
