"""
What is written as JSON, against the schemas that are shipped with it.

``jsonschema.validate`` would check the schema itself each time, which takes longer than the
document; a test of its own does that.
"""

import json
from importlib import resources

from jsonschema import Draft202012Validator


def _validator(name: str) -> Draft202012Validator:
    text = resources.files("otel_gpu.report").joinpath(name).read_text("utf-8")
    return Draft202012Validator(json.loads(text))


REPORT = _validator("schema.json")
STACKS = _validator("stacks_schema.json")
STACKS_DIFF = _validator("stacks_diff_schema.json")
LOOKS = _validator("threads_schema.json")
COMPARISON = _validator("comparison_schema.json")
ALL = (REPORT, STACKS, STACKS_DIFF, LOOKS, COMPARISON)
