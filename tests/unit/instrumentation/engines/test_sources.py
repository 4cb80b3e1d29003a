"""The stand-ins have the names that the released engines have."""

import dataclasses
import inspect
import pkgutil

import pytest

from tests.workloads.engines import sources

CALLS = sources.VLLM | sources.VLLM_SINCE_0_12 | sources.SGLANG


@pytest.mark.parametrize("name", CALLS)
def test_a_function_takes_what_the_engines_takes(engines, name):
    """By the same names and in the same order."""
    owner, _, function = name.rpartition(".")
    module, _, owner = owner.rpartition(".")
    found = getattr(pkgutil.resolve_name(f"{module}:{owner}"), function)
    assert tuple(inspect.signature(found).parameters)[1:] == CALLS[name]


@pytest.mark.parametrize("name", sources.FIELDS)
def test_data_has_the_fields_that_are_read(engines, name):
    """And no others, which nobody looked up."""
    module, _, owner = name.rpartition(".")
    found = dataclasses.fields(pkgutil.resolve_name(f"{module}:{owner}"))
    assert tuple(field.name for field in found) == sources.FIELDS[name]
