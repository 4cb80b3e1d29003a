"""What engines find, load and call, wherever this package is installed."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from tests.unit.instrumentation.engines.conftest import ENGINES

GROUPS = {
    "vllm.general_plugins": "watch_vllm",
    "sglang.srt.plugins": "watch_sglang",
    "sglang.plugins": "watch_sglang",
}


@pytest.mark.parametrize("group", GROUPS)
def test_an_engine_finds_its_plugin(group):
    """Under the name of this package, which is what it is chosen or left out by."""
    (found,) = entry_points(group=group, name="otel_gpu")
    assert found.load().__name__ == GROUPS[group]


LOADED = """
import logging, sys
logging.basicConfig(level=logging.INFO)
sys.path.insert(0, sys.argv[1])
if sys.argv[2:]:
    sys.modules["wrapt"] = None
from vllm.plugins import load_general_plugins
from sglang.srt.plugins import load_plugins
load_general_plugins()
load_plugins()
print(sorted(set(sys.modules) & {
    "opentelemetry.sdk", "vllm.v1.engine.core", "sglang.srt.managers.scheduler", "torch"}))
"""


@pytest.mark.parametrize("without", ["", "wrapt"])
def test_loading_the_plugins_imports_neither_an_engine_nor_an_sdk(without):
    """And where the extra is not installed, one line for each engine says so to who asks."""
    ran = subprocess.run(
        [sys.executable, "-c", LOADED, ENGINES, *([without] if without else [])],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert ran.stdout == "[]\n"
    said = ran.stderr.splitlines()
    assert len(said) == (2 if without else 0)
    assert all("otel-gpu[instrument]" in line for line in said)
