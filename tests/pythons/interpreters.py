"""
CPython 3.10 to 3.14 in several builds: those of this host, and those that can be had.

What is installed goes into the cache of the tests' programs, once for all checkouts, and changes
nothing of the host: each interpreter has a folder of its own with a script ``python`` that
starts it. Debian's come through apt from the suites that have them. apt checks signatures, and a
suite keeps only its newest packages, so there the suite is the pin. The builds that uv installs
come in a Go module, and one of 3.12 as a Maven artifact; those are pinned by version and checksum.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.backends import builds
from tests.pythons import apt, go, maven
from tests.pythons.missing import Missing

CACHE = builds.cache() / "pythons"

_ABOUT = """
import sys
print(*sys.version_info[:3], sys.abiflags or "-")
"""


class Interpreter(NamedTuple):
    """An interpreter; ``[*command, "script.py"]`` runs a script."""

    name: str
    command: tuple[str, ...]
    version: tuple[int, int, int]
    abi_flags: str

    @property
    def minor(self) -> tuple[int, int]:
        """Major and minor version."""
        return self.version[:2]


# Fills an empty folder and returns the text of the script that starts the interpreter.
_INSTALL: dict[str, Callable[[Path], str]] = {
    "3.13-debian": partial(apt.install, suite="trixie", package="python3.13"),
    "3.14-debian": partial(apt.install, suite="forky", package="python3.14"),
    "3.10-standalone": partial(go.install, version="3.10.16"),
    "3.11-standalone": partial(go.install, version="3.11.11"),
    "3.13-standalone": partial(go.install, version="3.13.1"),
    "3.14-standalone": partial(go.install, version="3.14.6"),
    "3.12-shared": partial(maven.install, version="3.12.1"),
}
# What is there already: the tests' own, the system's, and those on PATH or of pyenv.
_FOUND = {
    "this": lambda: [sys.executable],
    "3.11-system": lambda: ["/usr/bin/python3.11"],
    **{
        f"3.{minor}-found": partial(
            lambda name: [
                path
                for path in (shutil.which(name), *_of_pyenv(name))
                if path and not path.startswith(("/usr/bin/", "/bin/"))
            ],
            f"python3.{minor}",
        )
        for minor in range(10, 15)
    },
}

NAMES: Sequence[str] = (*_FOUND, *_INSTALL)
"""Every interpreter that may be there."""

QUICK: Sequence[str] = ("3.11-system", "3.13-debian", "3.14-debian")
"""Three versions that a bare Debian 12 has, or gets through apt in seconds."""

ONE_OF_EACH: Sequence[str] = ("3.10-standalone", "3.11-system", "3.12-shared", *QUICK[1:])
"""Each version once."""


def interpreter(name: str) -> Interpreter:
    """Return an interpreter by name, or skip the test and say what is missing."""
    try:
        return find(name)
    except Missing as reason:
        pytest.skip(f"{name}: {reason}")


@cache
def find(name: str) -> Interpreter:
    """
    Return an interpreter by name, installed when needed.

    Raises:
        Missing: It is not here and cannot be had.
    """
    if name in _INSTALL:
        return _about(name, str(_installed(name)))
    for path in _FOUND[name]():
        try:
            return _about(name, path)
        except Missing:
            continue
    raise Missing(f"this host has none (python{name.partition('-')[0]})")


def _about(name: str, path: str) -> Interpreter:
    try:
        run = subprocess.run([path, "-c", _ABOUT], capture_output=True, text=True, check=False)
    except OSError as error:
        raise Missing(str(error)) from None
    if run.returncode:
        raise Missing(f"{path} does not run: {run.stderr.strip()}")
    major, minor, micro, flags = run.stdout.split()
    version = (int(major), int(minor), int(micro))
    return Interpreter(name, (path,), version, flags.strip("-"))


def _installed(name: str) -> Path:
    folder = CACHE / name
    script = folder / "python"
    if script.exists():
        return script
    CACHE.mkdir(parents=True, exist_ok=True)
    # Another test run may want the same one at the same time.
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not script.exists():
            shutil.rmtree(folder, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
                fresh = Path(temporary, name)
                fresh.mkdir()
                text = _INSTALL[name](fresh)
                (fresh / "python").write_text(text, encoding="ascii")
                (fresh / "python").chmod(0o755)
                fresh.rename(folder)
    return script


def _of_pyenv(name: str) -> list[str]:
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    versions = root.glob(f"versions/{name.removeprefix('python')}.*/bin/{name}")
    return sorted(map(str, versions), reverse=True)
