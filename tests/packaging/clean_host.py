"""
A host without a compiler, headers or libbpf, made of this one: a private mount namespace.

/opt and /var/lib are empty there, /usr/include and /usr/src too, and an empty file lies over the
system's libbpf. Changes of /etc and of what is mounted end with the namespace; nothing of this
host changes.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.kernel.agent import environment_for

PROGRAM = "/opt/otel-gpu/bin/otel-gpu"
# Where nothing is but what a test puts there. The agent itself needs no other program.
PATH = "/opt/otel-gpu/bin:/opt/path"
# The last line is the sign that all is mounted.
SCRIPT = """
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=755 none /opt
mkdir -p /opt/path /opt/etc /opt/work
for folder in /var/lib /usr/include /usr/src; do
	[ ! -d "$folder" ] || mount -t tmpfs -o mode=755 none "$folder"
done
mount -t overlay -o lowerdir=/etc,upperdir=/opt/etc,workdir=/opt/work none /etc
: > /opt/empty
for library in "$@"; do mount --bind /opt/empty "$library"; done
echo ready
exec sleep infinity
"""


class CleanHost:
    """
    The namespace, as a context manager.

    Attributes:
        pid: A process that lives in it.
    """

    def __init__(self) -> None:
        self.pid = 0
        self._holder: subprocess.Popen[str]

    def __enter__(self) -> Self:
        command = ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", *map(str, system_libbpf())]
        self._holder = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._holder.pid
        assert self._holder.stdout
        assert self._holder.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.kill()
        self._holder.wait()
        if self._holder.stdout:
            self._holder.stdout.close()

    def inside(self, *command: str | Path) -> list[str]:
        """Return the command line that runs a command there."""
        nsenter = shutil.which("nsenter") or "nsenter"
        return [nsenter, "--target", str(self.pid), "--mount", "--wd=/", *map(str, command)]

    def run(
        self,
        *command: str | Path,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout_s: float = 120.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command there; its output is text."""
        return subprocess.run(
            self.inside(*command),
            env=with_tools() if env is None else env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=check,
            timeout=timeout_s,
        )

    def install(self, python: str, wheel: Path, constraints: Path) -> str:
        """
        Make the venv /opt/otel-gpu and install the wheel into it.

        Returns:
            What pip said when it did not; empty when it did.
        """
        self.run(python, "-m", "venv", "/opt/otel-gpu")
        # What is imported is compiled then: most of it never is.
        command = ["-q", "--no-compile", "--disable-pip-version-check", "--constraint"]
        command += [constraints, wheel]
        done = self.run("/opt/otel-gpu/bin/pip", "install", *command, check=False, timeout_s=300)
        return done.stderr if done.returncode else ""


def system_libbpf() -> set[Path]:
    """Return the files that are libbpf on this host."""
    folders = [Path(f) for f in ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")]
    found = [path for f in folders for path in (*f.glob("libbpf.so*"), *f.glob("*/libbpf.so*"))]
    return {path.resolve() for path in found}


def system_python() -> str | None:
    """Return an interpreter that every user may run and that can make a venv; None: no such."""
    for name in ("/usr/bin/python3", os.path.realpath(sys.executable)):
        ask = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))"
        if (
            shutil.which(name)
            and Path(name).parts[1] not in {"root", "home"}
            and subprocess.run([name, "-c", ask], stderr=subprocess.DEVNULL, check=False).returncode
            == 0
        ):
            return name
    return None


def with_tools() -> dict[str, str]:
    """Return this process's environment, without telemetry settings and Python's variables."""
    environment = {
        name: value
        for name, value in environment_for(None).items()
        if not name.startswith(("PYTHON", "VIRTUAL_ENV", "PIP_CONSTRAINT"))
    }
    return environment | {"PATH": f"{PATH}:{environment['PATH']}"}
