"""Which processes --pid names."""

import os
import threading
from collections.abc import Iterator

import pytest

from otel_gpu import cli


@pytest.fixture
def thread() -> Iterator[int]:
    """A thread of this process, beside its first."""
    known, over = threading.Event(), threading.Event()
    ids: list[int] = []

    def work() -> None:
        ids.append(threading.get_native_id())
        known.set()
        over.wait()

    worker = threading.Thread(target=work)
    worker.start()
    known.wait()
    yield ids[0]
    over.set()
    worker.join()


@pytest.mark.parametrize(
    "verb",
    [
        ["run"], ["top"], ["explain"], ["stacks"], ["stacks", "--now"], ["doctor"],
    ],
)  # fmt: skip
def test_a_thread_is_refused_with_its_process(
    thread: int, verb: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its number is in /proc as well, but what is counted is a process's."""
    code = cli.main([*verb, "--pid", str(thread)])
    said = capsys.readouterr().err

    assert f"{thread} is a thread of process {os.getpid()}" in said
    assert f"--pid {os.getpid()}" in said
    assert code in {1, 2}
