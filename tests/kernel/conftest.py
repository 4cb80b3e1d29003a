"""Fixtures of the kernel tests: a receiver, the stubs, the real runtime library."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_gpu.config import Config
from tests.hosts import required
from tests.kernel.agent import through
from tests.kernel.sampling import Capture
from tests.stubs.build import copy_of_runtime


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stub runtime for the tests of a module, as it takes long to put probes on one."""
    return copy_of_runtime(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module")
def capture(library: Path) -> Iterator[Capture]:
    """The programs, with probes on ``library``."""
    with Capture(library, Config()) as capture:
        yield capture


@pytest.fixture(scope="module", params=["probes", "preload"])
def counted_by(request: pytest.FixtureRequest) -> Iterator[str]:
    """Who counts the hot calls of commands; tests that use it run once for each."""
    with through(request.param):
        yield request.param


@pytest.fixture(scope="module", params=["probes", "entries", "preload"])
def counted_each_way(request: pytest.FixtureRequest) -> Iterator[str]:
    """As ``counted_by``, and also by probes that are all at the entries of functions."""
    with through(request.param):
        yield request.param


@pytest.fixture
def counted_by_probes() -> Iterator[None]:
    """For facts that only probes have, when all other tests are preloaded: see docs/preload.md."""
    with through("probes"):
        yield


@pytest.fixture(scope="session")
def real_cudart() -> Path:
    """The CUDA runtime of the nvidia-cuda-runtime wheel; needs no GPU to be called."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for library in sorted(Path(folder).rglob("libcudart.so.*")):
            return library
    reason = "the nvidia-cuda-runtime wheel is not installed"
    if "kernel" in required():
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
