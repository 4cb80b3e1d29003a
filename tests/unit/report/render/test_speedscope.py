"""Profiles for speedscope."""

import json

from otel_gpu.report.render.speedscope import speedscope_document
from tests.unit.report.stack_samples import MS, report_of


def test_a_speedscope_profile_is_as_its_format_wants_it():
    """
    The facts of https://github.com/jlfwong/speedscope (src/lib/file-format-spec.ts): shared
    frames, samples from the outermost frame to the innermost, one weight each, known units.
    """
    document = json.loads(json.dumps(speedscope_document(report_of(by="calls"))))

    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert document["activeProfileIndex"] == 0
    frames = document["shared"]["frames"]
    assert {"name": "fragmentation_pattern", "file": "/app/train.py", "line": 74} in frames
    assert {"name": "cudaMalloc (libcudart.so.12)"} in frames
    assert all(set(frame) <= {"name", "file", "line", "col"} for frame in frames)
    for profile in document["profiles"]:
        assert set(profile) == {
            *("type", "name", "unit", "startValue", "endValue", "samples", "weights")
        }
        assert profile["type"] == "sampled"
        assert profile["unit"] in {"none", "nanoseconds", "bytes"}
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["startValue"] == 0
        assert profile["endValue"] == sum(profile["weights"])
        assert all(0 <= number < len(frames) for sample in profile["samples"] for number in sample)
    assert [(profile["name"], profile["endValue"]) for profile in document["profiles"]] == [
        ("trainer (42), by calls", 1002),
        ("server (77), by calls", 1),
        ("trainer (42), by time", 12 * MS),
        ("server (77), by time", MS),
        ("trainer (42), by bytes", 300),
        ("server (77), by bytes", 50),
    ]
    sample = document["profiles"][0]["samples"][0]
    assert [frames[number]["name"] for number in sample] == [
        "<module>",
        "cudaLaunchKernel (libcudart.so.12)",
    ]
