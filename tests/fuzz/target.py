"""
A parser of foreign bytes, and the check that every target demands of it.

A parser gives an answer, or raises an error class that its docstring names. It does so within a bound
of CPU time and of memory. Anything else is a ``Finding``.
"""

import os
import resource
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "corpus"

# Beyond the bound: what Python itself takes, and stacks of threads, which are reserved and not used.
_RESERVED_BYTES = 1 << 30
# A parser that waits takes no CPU time.
_WAITING_S = 30.0


class Target(NamedTuple):
    """
    A parser under test.

    Attributes:
        name: Also of its folder in ``tests/corpus``.
        seeds: Makes valid inputs; files of the corpus are seeds too.
        parse: Runs the parser on an input, in an empty folder; raises one of ``refusals``, or nothing.
        refusals: The documented error classes.
        tokens: Words that mean something to the parser; mutations insert them.
        cpu_s: The bound of CPU time for one input, in seconds.
        memory_bytes: The bound of memory for one input, above what the process had before.
    """

    name: str
    seeds: Callable[[], Iterable[bytes]]
    parse: Callable[[bytes, Path], object]
    refusals: tuple[type[Exception], ...] = ()
    tokens: tuple[bytes, ...] = ()
    cpu_s: float = 3.0
    memory_bytes: int = 256 << 20

    def inputs(self) -> list[bytes]:
        """Return the seeds, and what the corpus has."""
        return [*self.seeds(), *(path.read_bytes() for path in self.corpus())]

    def corpus(self) -> list[Path]:
        """Return the files of the corpus, in order of their names."""
        return sorted(path for path in (CORPUS / self.name).glob("*") if path.is_file())


class Finding(Exception):  # noqa: N818 -- it is what is looked for
    """
    An input that broke the promise.

    ``place`` tells findings of one cause from others: the error and the innermost line of ours.
    """

    def __init__(self, place: str, details: str) -> None:
        super().__init__(f"{place}\n{details}")
        self.place = place
        self.details = details


class _TooSlowError(BaseException):
    """Not an ``Exception``, so that no parser takes it for a damaged input."""


def check(target: Target, data: bytes, folder: Path) -> bool:
    """
    Parse one input; return whether it was accepted.

    Raises:
        Finding: The parser raised another error, or took too much time or memory.
    """
    before_bytes = _restart_peak()
    begin_s = time.process_time()
    try:
        with _limits(target):
            target.parse(data, folder)
        accepted = True
    except target.refusals:
        accepted = False
    except _TooSlowError as error:
        raise Finding(f"TooSlow {_place(error)}", traceback.format_exc()) from None
    except MemoryError as error:
        raise Finding(f"MemoryError {_place(error)}", traceback.format_exc()) from None
    except Exception as error:  # noqa: BLE001 -- any other is what is looked for
        raise Finding(f"{type(error).__name__} {_place(error)}", traceback.format_exc()) from None
    took_s = time.process_time() - begin_s
    if took_s > target.cpu_s:
        raise Finding("TooSlow", f"it took {took_s:.1f} s of CPU time; the bound is {target.cpu_s}")
    grown_bytes = _peak_bytes() - before_bytes
    if grown_bytes > target.memory_bytes:
        raise Finding(
            "TooLarge",
            f"it took {grown_bytes >> 20} MiB; the bound is {target.memory_bytes >> 20} MiB",
        )
    return accepted


@contextmanager
def _limits(target: Target) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used_bytes + target.memory_bytes + _RESERVED_BYTES
    is_main = threading.current_thread() is threading.main_thread()

    def stop(_signal: int, _frame: object) -> None:
        raise _TooSlowError

    handlers = {
        one: signal.signal(one, stop) for one in (signal.SIGPROF, signal.SIGALRM) if is_main
    }
    try:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
        if is_main:
            signal.setitimer(signal.ITIMER_PROF, 2 * target.cpu_s)
            signal.setitimer(signal.ITIMER_REAL, _WAITING_S + 10 * target.cpu_s)
        yield
    finally:
        if is_main:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
        for one, handler in handlers.items():
            signal.signal(one, handler)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _restart_peak() -> int:
    """Let the kernel forget the peak of this process's memory; return the present use in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak_bytes()


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if f"{os.sep}otel_gpu{os.sep}" in frame.filename]
    if not ours:
        return "outside"
    return f"{ours[-1].filename.partition(f'{os.sep}otel_gpu{os.sep}')[2]}:{ours[-1].lineno}"
