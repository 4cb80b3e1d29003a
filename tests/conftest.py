"""
Gates: a marked test is skipped where the host lacks something, unless it is required.

And what tests of many folders need: a receiver, and the stubs of the CUDA libraries.
"""

import gc
import logging
import os
import signal
import sys
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

from otel_gpu.capture.host.host_facts import collect_rarely
from tests import turns
from tests.hosts import MARKERS, missing_for, required
from tests.receiver import OtlpReceiver
from tests.stubs.build import BEGIN_AS_DRIVER, StubLibraries, stub_libraries

# How long an example takes says more about the machine's other work than about the code,
# and a check of a change must not fail for an example that the change did not touch.
settings.register_profile("otel_gpu", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("otel_gpu")

_turns = turns.Turns()

# The flight recorder of the user who runs the tests is not theirs to write or to read.
os.environ.setdefault("OTEL_GPU_STORE_ENABLED", "off")

# As in the driver, the sites of probes are behind the entries, which cost 20 times as much.
os.environ.setdefault(BEGIN_AS_DRIVER, "1")

# Each of the thousand programs that tests start would else compile the whole package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Where pytest loads readline, that says how wide the terminal is: to each test process, and to what
# tests start. How wide something is shown is what a test says, and else no terminal's width.
for _name in ("COLUMNS", "LINES"):
    os.environ.pop(_name, None)

# Programs that tests start die of these, as from a terminal, also where who runs the tests
# ignores them, as nohup and a shell's "&" do: a signal that is ignored is inherited, a handler is not.
for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda _number, _frame: None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    # A test that runs the command line in this process leaves the level that it asked for.
    for name in ("otel_gpu", "opentelemetry.exporter"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name in MARKERS:
        if item.get_closest_marker(name) and (reason := missing_for(name)):
            if name in required():
                pytest.fail(f"{name} tests are required here, but {reason}", pytrace=False)
            pytest.skip(f"{name}: {reason}")


def pytest_configure(config: pytest.Config) -> None:
    unknown = required() - set(MARKERS)
    if unknown:
        raise pytest.UsageError(
            f"OTEL_GPU_TEST_REQUIRE names {', '.join(sorted(unknown))}; "
            f"known are {', '.join(MARKERS)}"
        )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> turns.Groups:
    return turns.Groups(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return turns.processes()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=turns.order)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    # What is collected lives until the end. To look for garbage in it takes a third of the time.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        collect_rarely()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    with _turns.turn(item, nextitem):
        return (yield)


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def stubs() -> StubLibraries:
    return stub_libraries()
