"""
Fuzz parsers of foreign bytes for some time.

    python -m tests.fuzz.driver [--target NAME]... [--minutes N]

Each target runs in a process of its own, so a crash of the interpreter is a finding like any other.
What is found is made small and kept in ``tests/corpus/NAME``; the exit code is 1. Where atheris is
installed, ``--guided`` lets the coverage of ``otel_gpu`` choose what is mutated next.
"""

import argparse
import hashlib
import importlib
import mmap
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tests.fuzz.mutation import MAX_BYTES, mutate
from tests.fuzz.target import CORPUS, Finding, Target, check

MODULES = tuple(
    f"tests.fuzz.{path.stem}" for path in sorted(Path(__file__).parent.glob("parsers_*.py"))
)
_SHRINK_S = 5.0
_MOST_FINDINGS = 20
_LENGTH_BYTES = 8


class Current:
    """The input that is parsed now, where the parent finds it after a crash."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _LENGTH_BYTES + 2 * MAX_BYTES)

    def set(self, data: bytes) -> None:
        """Keep an input."""
        self._memory[:_LENGTH_BYTES] = len(data).to_bytes(_LENGTH_BYTES, "little")
        self._memory[_LENGTH_BYTES : _LENGTH_BYTES + len(data)] = data

    def get(self) -> bytes:
        """Return the last one."""
        size = int.from_bytes(self._memory[:_LENGTH_BYTES], "little")
        return self._memory[_LENGTH_BYTES : _LENGTH_BYTES + size]


class Findings:
    """What was found of one target; each cause is kept once, as a small file."""

    def __init__(self, target: Target, corpus: Path) -> None:
        self._target = target
        self._corpus = corpus / target.name
        self._places: set[str] = set()

    @property
    def count(self) -> int:
        """How many causes there are."""
        return len(self._places)

    def add(self, finding: Finding, data: bytes, folder: Path | None) -> None:
        """Take a finding; a ``folder`` to try smaller inputs in, unless it crashes."""
        if finding.place in self._places:
            return
        self._places.add(finding.place)
        if folder is not None:
            data = shrink(self._target, data, finding.place, folder)
        self._corpus.mkdir(parents=True, exist_ok=True)
        path = self._corpus / f"found-{hashlib.sha256(data).hexdigest()[:12]}"
        path.write_bytes(data)
        print(f"{self._target.name}: {finding.place}: {path}\n{finding.details}", flush=True)  # noqa: T201


def shrink(target: Target, data: bytes, place: str, folder: Path) -> bytes:
    """Return a smaller input that breaks the same promise, after some seconds of trying."""
    until_s = time.monotonic() + _SHRINK_S
    step = max(len(data) // 2, 1)
    while step and time.monotonic() < until_s:
        at = 0
        while at < len(data) and time.monotonic() < until_s:
            smaller = data[:at] + data[at + step :]
            if _place_of(target, smaller, folder) == place:
                data = smaller
            else:
                at += step
        step //= 2
    return data


def _place_of(target: Target, data: bytes, folder: Path) -> str:
    try:
        check(target, data, folder)
    except Finding as finding:
        return finding.place
    return ""


def fuzz(
    target: Target, seconds: float, *, corpus: Path = CORPUS, seed: int = 0, guided: bool = False
) -> bool:
    """Mutate the inputs of a target for some time; return whether nothing was found."""
    current = Current()
    child = os.fork()
    if not child:
        code = 70
        try:
            code = _run_child(target, seconds, corpus, seed, current, guided=guided)
        except Exception:  # noqa: BLE001 -- of the driver itself, which must not look like a target's
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    # An input that neither answers nor lets a signal through ends with its process.
    end_s = time.monotonic() + seconds + 300
    while (status := os.waitpid(child, os.WNOHANG)[1] if _has_ended(child) else None) is None:
        if time.monotonic() > end_s:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.05)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        name = signal.Signals(-code).name
        finding = Finding(f"ended by {name}", "the process that ran the parser is gone")
        Findings(target, corpus).add(finding, current.get(), None)
    return code == 0


def _has_ended(child: int) -> bool:
    found = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return found is not None


def _run_child(
    target: Target, seconds: float, corpus: Path, seed: int, current: Current, *, guided: bool
) -> int:
    folder = Path(tempfile.mkdtemp(prefix=f"fuzz-{target.name}-"))
    findings = Findings(target, corpus)
    counts = [0, 0]

    def try_one(data: bytes) -> None:
        current.set(data)
        try:
            counts[check(target, data, emptied(folder))] += 1
        except Finding as finding:
            findings.add(finding, data, folder)

    inputs = target.inputs()
    for data in inputs:
        try_one(data)
    run = _guided if guided else _plain
    try:
        run(target, inputs, seconds, random.Random(seed), try_one, lambda: findings.count)  # noqa: S311 -- no secret
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        print(  # noqa: T201
            f"{target.name}: {sum(counts):,} inputs in {seconds:.0f} s, "
            f"{counts[1]:,} accepted, {findings.count} found",
            flush=True,
        )
    return 1 if findings.count else 0


def emptied(folder: Path) -> Path:
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            with suppress(FileNotFoundError):
                os.unlink(entry.path)  # noqa: PTH108 -- a thousand times a second
    return folder


def _plain(
    target: Target,
    inputs: Sequence[bytes],
    seconds: float,
    random_: random.Random,
    try_one: Callable[[bytes], None],
    found: Callable[[], int],
) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s and found() < _MOST_FINDINGS:
        try_one(mutate(random_, inputs, target.tokens))


def _guided(
    target: Target,
    inputs: Sequence[bytes],
    seconds: float,
    random_: random.Random,
    try_one: Callable[[bytes], None],
    found: Callable[[], int],
) -> None:
    import atheris  # noqa: PLC0415 -- not in the environment of tests: it has no wheels for each Python

    folder = tempfile.mkdtemp(prefix="fuzz-corpus-")
    for number, data in enumerate(inputs):
        Path(folder, str(number)).write_bytes(data)
    until_s = time.monotonic() + seconds

    class Done(Exception):  # noqa: N818
        pass

    def take(data: bytes) -> None:
        if time.monotonic() > until_s or found() >= _MOST_FINDINGS:
            # libFuzzer ends the process, and says nothing of what was found.
            raise Done
        try_one(data)

    def change(data: bytes, max_size: int, seed: int) -> bytes:
        if seed % 2:
            return bytes(atheris.Mutate(data, max_size))
        return mutate(random.Random(seed), (data, *inputs), target.tokens)[:max_size]  # noqa: S311

    arguments = [
        sys.argv[0],
        f"-seed={random_.randrange(1, 1 << 31)}",
        "-verbosity=0",
        "-print_final_stats=0",
        f"-artifact_prefix={folder}/",
    ]
    atheris.Setup([*arguments, f"-max_len={MAX_BYTES}", folder], take, custom_mutator=change)
    try:
        atheris.Fuzz()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def load_targets(*, guided: bool = False) -> dict[str, Target]:
    """Return all targets by name."""
    if guided:
        import atheris  # noqa: PLC0415 -- see above

        with atheris.instrument_imports(include=["otel_gpu"]):
            modules = list(map(importlib.import_module, MODULES))
    else:
        modules = list(map(importlib.import_module, MODULES))
    return {target.name: target for module in modules for target in module.TARGETS}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 1 where anything was found."""
    parser = argparse.ArgumentParser(prog="fuzz", description="Fuzz parsers of foreign bytes.")
    parser.add_argument("--target", action="append", help="a name; all without it")
    parser.add_argument("--minutes", type=float, default=1.0, help="for all of them together")
    parser.add_argument(
        "--seed", type=int, default=None, help="of the mutations; else another each time"
    )
    parser.add_argument("--guided", action="store_true", help="by coverage; needs atheris")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="where findings are kept")
    given = parser.parse_args(arguments)
    targets = load_targets(guided=given.guided)
    unknown = set(given.target or ()) - targets.keys()
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}; there are: {', '.join(targets)}")
    chosen = [targets[name] for name in given.target or targets]
    seconds = 60 * given.minutes / len(chosen)
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    print(f"{len(chosen)} targets, {seconds:.1f} s each, seed {seed}", flush=True)  # noqa: T201
    good = [
        fuzz(target, seconds, corpus=given.corpus, seed=seed, guided=given.guided)
        for target in chosen
    ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
