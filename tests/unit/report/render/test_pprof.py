"""Profiles for pprof: what the format demands; tests/backends runs pprof itself."""

import gzip

import pytest

from otel_gpu.report.render.pprof import _message, pprof_file
from otel_gpu.report.stacks.top_stacks import CPU, GRAPHS
from otel_gpu.wire.frames import Frame
from tests.activities import SECOND, call_stack, sample
from tests.unit.report.busy_threads import MS, TRAINER, report_of
from tests.unit.report.stack_samples import EVIL
from tests.unit.report.stack_samples import report_of as calls_of


def parse(data):
    """The message, and what its numbers of texts mean."""
    profile = _message("Profile").FromString(gzip.decompress(data))
    return profile, profile.string_table


def stacks_of(profile, texts):
    """Functions from the innermost outwards, by their samples' values."""
    names = {one.id: texts[one.name] for one in profile.function}
    lines = {one.id: names[one.line[0].function_id] for one in profile.location}
    return {tuple(lines[n] for n in one.location_id): list(one.value) for one in profile.sample}


def test_samples_have_their_stack_and_what_they_stand_for():
    """Inner frames first, a value for each type, and the time as what is shown at first."""
    profile, texts = parse(pprof_file(report_of(kind=CPU)))

    assert [(texts[one.type], texts[one.unit]) for one in profile.sample_type] == [
        ("samples", "count"),
        ("cpu", "nanoseconds"),
    ]
    assert texts[profile.default_sample_type] == "cpu"
    found = stacks_of(profile, texts)
    assert found["resize", "<module>"] == [50, 500 * MS]
    assert found[
        "clear_page (kernel)",
        "handle_mm_fault (kernel)",
        "cudaMalloc (libcudart.so.12)",
        "fragmentation_pattern",
        "<module>",
    ] == [1, 40 * MS]
    assert sum(one.value[1] for one in profile.sample) == 1_100 * MS
    functions = {one.id: (texts[one.name], texts[one.filename]) for one in profile.function}
    lines = {functions[one.line[0].function_id]: one.line[0].line for one in profile.location}
    assert lines["resize", "/app/load.py"] == 100


@pytest.mark.parametrize(
    "report", [report_of(kind=kind) for kind in GRAPHS] + [calls_of(by="bytes")]
)
def test_a_profile_is_as_its_format_wants_it(report):
    """The facts of profile.proto: the first text is empty, numbers begin with 1 and are there."""
    profile, texts = parse(pprof_file(report))

    assert texts[0] == ""
    assert len(set(texts)) == len(texts)
    functions, locations = (
        {one.id for one in some} for some in (profile.function, profile.location)
    )
    assert 0 not in functions | locations
    for one in profile.sample:
        assert len(one.value) == len(profile.sample_type)
        assert set(one.location_id) <= locations
        assert {texts[label.key] for label in one.label} >= {"process", "pid", "service", "kind"}
    assert {line.function_id for one in profile.location for line in one.line} <= functions
    assert profile.time_nanos == report.start_unix_ns
    assert profile.duration_nanos == report.end_unix_ns - report.start_unix_ns


def test_calls_have_all_of_their_measures():
    """And a sampled one counts as often as it stands for."""
    profile, texts = parse(pprof_file(calls_of(by="bytes")))

    assert [texts[one.type] for one in profile.sample_type] == ["calls", "time", "bytes"]
    assert texts[profile.default_sample_type] == "bytes"
    assert [1000, 5 * MS, 0] in [list(one.value) for one in profile.sample]


def test_the_same_report_gives_the_same_file():
    """Byte for byte, so that it can be compared and cached."""
    assert pprof_file(report_of(kind=CPU)) == pprof_file(report_of(kind=CPU))


@pytest.mark.parametrize("name", EVIL)
def test_names_steer_no_terminal(name):
    """Whatever reads the file prints them."""
    stack = call_stack(1, (Frame("native", name, module=name),))
    _, texts = parse(pprof_file(report_of(sample(TRAINER, SECOND, MS, stack=stack), kind=CPU)))

    assert all(text.isprintable() for text in texts)


def test_what_no_clock_can_say_is_cut_off():
    """A damaged record has weights that the format has no numbers for."""
    most = (1 << 64) - 1
    made = (sample(TRAINER, SECOND, most), sample(TRAINER, SECOND, most))

    profile, _ = parse(pprof_file(report_of(*made, kind=CPU)))

    assert [list(one.value) for one in profile.sample] == [[2, (1 << 63) - 1]]
