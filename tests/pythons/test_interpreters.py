"""The interpreters that tests run."""

import pytest

from tests.hosts import required
from tests.pythons.interpreters import NAMES, find
from tests.pythons.missing import Missing


def test_three_versions_of_python_are_here():
    """Where the kernel tests may not be skipped, at least three versions take part in them."""
    versions, reasons = set(), []
    for name in NAMES:
        try:
            versions.add(find(name).minor)
        except Missing as reason:
            reasons.append(f"{name}: {reason}")
    if len(versions) < 3 and "kernel" not in required():
        pytest.skip("; ".join(reasons))

    assert len(versions) >= 3, reasons
