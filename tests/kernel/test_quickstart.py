"""A reader who follows docs/quickstart.md word for word, in a fresh copy, gets what it shows."""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.backends import builds
from tests.kernel.agent import FIRST

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "quickstart.md"
LEFT_OUT = "..."
SET_UP = "Set up"
WITHOUT_ROOT = "From a recording, without root"
ONE_COMMAND = "Watch one command"
JAEGER = "With Jaeger"
TIMEOUT_S = 400.0

# Where these are on the page, they are facts of the workload, and no figures of one run.
EXACT = frozenset({"2532", "844", "633"})
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r"<?\d[\d,]*(?:\.\d+)*(?: (?:ns|µs|ms|s)\b)?")
OWN_NETWORK = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
NO_CAPABILITIES = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")


class Step(NamedTuple):
    """Commands, and what they print."""

    commands: str
    shown: str


def steps_of(section: str) -> list[Step]:
    """What a section of the page says."""
    found = re.split(r"^## (.*)\n", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    blocks = BLOCK.findall(dict(zip(found[1::2], found[2::2], strict=True))[section])
    kinds = [kind for kind, _ in blocks]
    assert kinds == ["sh", "text"] * (len(blocks) // 2), "commands, and then what they print"
    return [
        Step(commands, shown)
        for (_, commands), (_, shown) in zip(blocks[::2], blocks[1::2], strict=True)
    ]


def pattern_of(line: str) -> str:
    """A line of the page, with anything in the place of a figure or of an ellipsis."""
    pieces = re.split(f"({FIGURE.pattern}|…|\\s+)", line.strip())
    return r"[ \t]*" + "".join(map(_pattern_of_piece, pieces)) + r"[ \t]*"


def _pattern_of_piece(piece: str) -> str:
    if piece == "…":
        return ".*"
    if piece.isspace():
        return r"[ \t]+"
    if FIGURE.fullmatch(piece) and piece not in EXACT:
        return FIGURE.pattern
    return re.escape(piece)


def not_shown(shown: str, printed: str) -> str:
    """
    The first part of the page that is not in what was printed; empty: all of it is.

    What no ``...`` parts are lines one after the other.
    """
    position = 0
    for part in re.split(rf"^{re.escape(LEFT_OUT)}\n", shown, flags=re.MULTILINE):
        lines = part.splitlines()
        pattern = re.compile("^" + "\\n".join(map(pattern_of, lines)) + "$", re.MULTILINE)
        found = pattern.search(printed, position) if lines else None
        if lines and found is None:
            return part
        position = found.end() if found else position
    return ""


def follow(
    section: str, folder: Path, *, inside: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> None:
    """
    Run a section as one shell, and compare what each step prints.

    Args:
        section: Its heading.
        folder: The fresh copy.
        inside: A command that runs the shell.
        env: Variables beside those of a reader.
    """
    steps = steps_of(section)
    outputs = [folder / f".step{number}" for number in range(len(steps))]
    # The end of a section ends what it left running, as Jaeger.
    parts = ["set -e", "trap 'kill $(jobs -p) 2>&- || true; wait' EXIT"]
    parts += [
        f"{{\n{step.commands}}} > {output} 2>&1"
        for step, output in zip(steps, outputs, strict=True)
    ]
    process = subprocess.Popen(
        [*inside, "bash", "-c", "\n".join(parts)],
        cwd=folder,
        env=readers_environment() | dict(env or {}),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        returncode = process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    printed = [path.read_text(encoding="utf-8") if path.exists() else "" for path in outputs]
    assert returncode == 0, printed
    for step, output in zip(steps, printed, strict=True):
        assert not_shown(step.shown, output) == "", output


def readers_environment() -> dict[str, str]:
    """What a shell has that knows nothing of us."""
    ours = ("OTEL_", "PYTHON", "VIRTUAL_ENV", "MAKE", "MFLAGS", "LD_", "PYTEST", "CUDA")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def lend_packages(venv: Path) -> None:
    """
    Make a virtual environment that has the packages of the one that runs the tests.

    ``make setup`` looks at each of them and installs the project. That it installs them too is what
    every fresh clone begins with, as CI does, and takes half a minute.
    """
    prefix = Path(sys.prefix)
    if not ((prefix / "pyvenv.cfg").is_file() and (prefix / "bin" / "pip").is_file()):
        return
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    for ours in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        theirs = venv / Path(ours).relative_to(prefix)
        shutil.copytree(ours, theirs, copy_function=link_or_copy, dirs_exist_ok=True)
    pip = Path(shutil.copy(prefix / "bin" / "pip", venv / "bin"))
    pip.write_text(pip.read_text(encoding="utf-8").replace(sys.prefix, str(venv)), encoding="utf-8")


def link_or_copy(source: str, target: str) -> None:
    """Give a file a second name, or make a copy where that is on another disk."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.fixture(scope="module")
def checkout() -> Iterator[Path]:
    """A fresh copy of what is, or would be, in the repository, set up as the page says."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("this is no checkout of git")
    # A virtual environment has 270 MB, and pytest would keep three of them.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in map(os.fsdecode, filter(None, listed.stdout.split(b"\0"))):
            if (ROOT / path).is_file():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / path, folder / path)
        lend_packages(folder / ".venv")
        follow(SET_UP, folder)
        yield folder


def test_a_recording_is_explained_without_root(checkout: Path) -> None:
    """Explained, exported and made a page, by a user who may do nothing."""
    privileged = os.geteuid() == 0 and shutil.which(NO_CAPABILITIES[0])

    follow(WITHOUT_ROOT, checkout, inside=NO_CAPABILITIES if privileged else ())


@pytest.mark.kernel
def test_one_command_is_watched(checkout: Path) -> None:
    """Each call of the workload is counted, and a demo's cause is found."""
    if Path("/dev/nvidiactl").exists():
        pytest.skip("with a GPU, calls do not fail as the page shows")

    # The page is of a machine that does nothing else.
    follow(ONE_COMMAND, checkout, inside=FIRST)


@pytest.mark.kernel
@pytest.mark.backends
def test_a_demo_is_seen_in_jaeger(checkout: Path, tmp_path: Path) -> None:
    """The ports are those of the page: a network of its own has them free."""
    (tmp_path / "jaeger").symlink_to(builds.jaeger())
    (tmp_path / "otelcol-contrib").symlink_to(builds.otelcol())

    path = f"{tmp_path}:{os.environ['PATH']}:/usr/sbin"
    follow(JAEGER, checkout, inside=OWN_NETWORK, env={"PATH": path})


@pytest.mark.parametrize(
    ("shown", "missing"),
    [
        ("a 1\n...\nb 2 ms … x\n", ""),
        ("a 1\nb 2 ms … x\n", "a 1\nb 2 ms … x\n"),
        ("b 2 ms … x\n...\na 1\n", "a 1\n"),
        ("a 844\n", "a 844\n"),
        ("a 1 x\n", "a 1 x\n"),
    ],
)
def test_what_is_not_printed_is_seen(shown: str, missing: str) -> None:
    """Other words, another order, lines that are not neighbours, another number of calls."""
    assert not_shown(shown, "a  7\nc\nb 1.5 µs y z x\n") == missing
