"""How the agent starts: what is meant for Python in its command does not change the agent's own."""

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import otel_gpu
from otel_gpu.capture.processes.inherited import given_environment

ROOT = Path(__file__).resolve().parents[2]
VERSION = f"otel-gpu {otel_gpu.__version__}\n"
# Any of them ends Python, or has it wait for a person, or says more than was asked for.
FOR_THE_COMMAND = {
    "PYTHONHOME": "/nonexistent",
    "PYTHONINSPECT": "1",
    "PYTHONVERBOSE": "1",
    "PYTHONWARNINGS": "error",
}
# Writes one line of text and one document, by way of the encoding of its first argument.
WRITES = """
import json, sys
encoding = sys.argv.pop(1)
for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(encoding=encoding, errors="strict")
from otel_gpu import cli
from otel_gpu.cli.commands import Output
def main():
    out = Output()
    out.line("trainée \\N{SNOWMAN} \\N{GRINNING FACE} \\udc80")
    out.json({"name": "trainée \\N{GRINNING FACE}"})
    out.note("trainée")
    return 0
cli.main = main
sys.exit(cli.program())
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The command in a virtual environment of its own, with what this one has."""
    (tmp_path / "bin").mkdir()
    shutil.copy(ROOT / "deploy" / "otel-gpu.sh", tmp_path / "bin" / "otel-gpu")
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    for name in ("pyvenv.cfg", "lib"):
        (tmp_path / name).symlink_to(Path(sys.prefix) / name)
    return tmp_path / "bin" / "otel-gpu"


@pytest.fixture
def poisoned(tmp_path: Path) -> dict[str, str]:
    """Variables with which another Python would not even start."""
    (tmp_path / "path").mkdir()
    for name in ("argparse.py", "sitecustomize.py"):
        (tmp_path / "path" / name).write_text("raise SystemExit('not mine')\n")
    return {**os.environ, **FOR_THE_COMMAND, "PYTHONPATH": str(tmp_path / "path")}


def test_the_command_ignores_variables_of_python(
    installed: Path, poisoned: dict[str, str], tmp_path: Path
) -> None:
    """Where it is installed, and through a link from a folder of PATH."""
    link = tmp_path / "linked"
    link.symlink_to(installed)
    for program in (installed, link):
        done = subprocess.run(
            [program, "--version"], env=poisoned, capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.stderr, done.returncode) == (VERSION, "", 0)


def test_the_module_starts_again_without_variables_of_python() -> None:
    """Where Python itself could start with them; a person is not asked for anything at its end."""
    env = {**os.environ, **FOR_THE_COMMAND, "PYTHONHOME": sys.base_prefix}
    command = [sys.executable, "-m", "otel_gpu", "--version"]
    leader, terminal = pty.openpty()
    try:
        done = subprocess.run(
            command,
            env=env,
            stdin=terminal,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(leader)
        os.close(terminal)

    assert done.stdout == VERSION
    assert done.returncode == 0


def test_a_package_that_pythonpath_leads_to_is_found(tmp_path: Path) -> None:
    """As after ``pip install --target``: the variable is the agent's own there."""
    (tmp_path / "otel_gpu").symlink_to(ROOT / "otel_gpu")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    code = "import runpy, sys; sys.argv[1:] = ['--version']; runpy.run_module('otel_gpu', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=env, capture_output=True, text=True, check=False
    )

    assert done.stdout == VERSION


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_an_encoding_cannot_hold_is_escaped(encoding: str) -> None:
    """Nothing is refused, and JSON stays JSON."""
    done = subprocess.run(
        [sys.executable, "-E", "-c", WRITES, encoding], capture_output=True, check=False
    )
    line, document = done.stdout.decode(encoding).split("\n", 1)

    assert done.returncode == 0
    assert json.loads(document) == {"name": "trainée \N{GRINNING FACE}"}
    assert b"Traceback" not in done.stderr
    assert {
        "ascii": r"train\u00e9e \u2603 \ud83d\ude00 \udc80",
        "latin-1": r"trainée \u2603 \ud83d\ude00 \udc80",
        "utf-8": "trainée \N{SNOWMAN} \N{GRINNING FACE} " + r"\udc80",
    }[encoding] == line


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_closed_descriptors_are_no_error(closed: tuple[int, ...]) -> None:
    """What would be written there is gone, and nothing else."""
    closing = " ".join(f"{fd}>&-" for fd in closed)
    command = [sys.executable, "-m", "otel_gpu", "--version"]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closing}', "sh", *command],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0
    assert done.stdout == ("" if 1 in closed else VERSION)
    assert done.stderr == ""


def test_the_locale_that_python_adds_is_not_handed_on() -> None:
    """In a POSIX locale it sets LC_CTYPE for its children, of which the command is none."""
    code = f"from {given_environment.__module__} import *; print(sorted(given_environment()))"
    for given in ({}, {"LC_CTYPE": "C.UTF-8"}):
        done = subprocess.run(
            [sys.executable, "-c", code], env={"A": "b", **given}, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        assert done.stdout == f"{sorted({'A', *given})}\n"
