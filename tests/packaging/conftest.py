"""The wheel under test, and a host to install it on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts import required
from tests.packaging.clean_host import CleanHost, system_python
from tests.packaging.wheel import ROOT, build, copy_checkout


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_checkout(tmp_path_factory.mktemp("first") / "checkout")


@pytest.fixture(scope="session")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", checkout, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def clean_host(wheel: Path) -> Iterator[CleanHost]:
    """A host with the wheel in /opt/otel-gpu, and without libbpf, compilers and headers."""
    python = system_python()
    if python is None:
        skip("no Python 3.11 with venv that every user may run (Debian package python3-venv)")
    with CleanHost() as host:
        if failure := host.install(python, wheel, ROOT / "requirements-dev.lock"):
            skip(f"pip cannot install what the wheel depends on: {failure[-300:]}")
        yield host


def skip(reason: str) -> None:
    """Skip, or fail where kernel tests are required."""
    if "kernel" in required():
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
