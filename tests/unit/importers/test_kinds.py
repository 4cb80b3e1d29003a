"""The kinds of captures that can be imported."""

import importlib

import pytest

from otel_gpu.importers import KINDS


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_has_its_module(name):
    """It is imported by name when it is asked for, and not before."""
    module = importlib.import_module(KINDS[name].module)

    assert callable(module.open_capture)
    assert KINDS[name].description
