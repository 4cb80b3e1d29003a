"""Fixtures of the kernel tests: a receiver, the stubs, the real runtime library."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts import required
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, stub_libraries


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def stubs() -> StubLibraries:
    return stub_libraries()


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
