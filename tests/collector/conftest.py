"""Fixtures of the collector tests: rotel in front of a receiver."""

from collections.abc import Iterator

import pytest

from tests.collector.collector import Collector
from tests.receiver import OtlpReceiver


@pytest.fixture
def collector(receiver: OtlpReceiver) -> Iterator[Collector]:
    with Collector(forward_to=receiver) as collector:
        yield collector
