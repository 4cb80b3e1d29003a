"""Stand-ins for the engines, with the names of released versions; see ``sources.py`` beside them."""

import importlib
import sys
from pathlib import Path

import pytest

from otel_gpu.instrumentation.engines import inference_steps, plugins
from tests.unit.instrumentation.telemetry import Telemetry, installed

ENGINES = Path(__file__).parents[3] / "workloads" / "engines"
WATCHED = ("vllm.v1.engine.core", "vllm.v1.worker.gpu_worker", "sglang.srt.managers.scheduler")


@pytest.fixture
def engines(monkeypatch):
    """Make the stand-ins importable, as if this process had never imported them."""
    monkeypatch.syspath_prepend(ENGINES)
    _forget()
    yield
    # What waits for a module is for this test only.
    for name in WATCHED:
        importlib.import_module(name)
    _forget()


@pytest.fixture
def telemetry(monkeypatch, engines):
    with installed(monkeypatch, Telemetry()) as made:
        yield made


def _forget():
    for name in [name for name in sys.modules if name.split(".")[0] in {"vllm", "sglang"}]:
        del sys.modules[name]
    for cached in (plugins.watch_vllm, plugins.watch_sglang, inference_steps._link_limit):
        cached.cache_clear()
