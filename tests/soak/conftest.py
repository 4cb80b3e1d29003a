"""Fixtures of the soak tests: a receiver, and the stubs of CUDA's libraries."""

from collections.abc import Iterator

import pytest

from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, stub_libraries


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def stubs() -> StubLibraries:
    return stub_libraries()
