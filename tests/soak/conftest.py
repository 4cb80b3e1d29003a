"""
Tests that go on for as long as they are given: ``make soak MINUTES=…``.

Each takes the fixture ``deadline_s`` and ends soon after it, or as many processes as a storm has.
What it checks at the end is exact, however long it went on.
"""

import os
import time

import pytest


@pytest.fixture
def deadline_s() -> float:
    """When a test has had its minutes, by ``time.monotonic``."""
    minutes = os.environ.get("OTEL_GPU_SOAK_MINUTES", "")
    if not minutes:
        pytest.skip("soak: takes minutes; run `make soak`")
    return time.monotonic() + 60 * float(minutes)
