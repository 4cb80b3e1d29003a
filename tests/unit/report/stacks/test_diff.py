"""Differences of stacks: shares that are compared, and every form of them."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from otel_gpu.report.json_form import to_text
from otel_gpu.report.render.folded import folded_differences
from otel_gpu.report.render.html.flamegraph import difference_page, draw_difference
from otel_gpu.report.render.text.stacks import write_difference
from otel_gpu.report.stacks.diff import compare
from otel_gpu.report.stacks.document import make_diff_document
from otel_gpu.report.stacks.top_stacks import CPU
from otel_gpu.wire.frames import Frame
from tests.activities import SECOND, call_stack, capture, image, sample
from tests.schemas import STACKS_DIFF
from tests.unit.report.busy_threads import MS, report_of
from tests.unit.report.render.html.pages import Seen
from tests.unit.report.stack_samples import EVIL


def spent(pid=42, source="x", **functions_ms):
    """What was spent in each of some functions."""
    made = [
        sample(
            image(pid), SECOND, round(time_ms * MS),
            stack=call_stack(1 + n, (Frame("cpython", name, "/app/a.py", 1), Frame("cpython", "main"))),
        )
        for n, (name, time_ms) in enumerate(sorted(functions_ms.items()))
    ]  # fmt: skip
    return report_of(capture(), *made, kind=CPU, source=source)


def text_of(diff, limit=20):
    printed = io.StringIO()
    write_difference(diff, Console(file=printed, width=200, highlight=False), limit)
    return printed.getvalue()


def test_shares_are_compared_and_not_times():
    """Twice as long a capture, of another run: what has the same share has not changed."""
    diff = compare(spent(10, f=50, g=50), spent(20, f=50, g=100, h=50))

    assert [(one.frames[-1].text, one.before, one.after) for one in diff.changes()] == [
        ("f (/app/a.py:1)", 0.5, 0.25),
        ("h (/app/a.py:1)", 0, 0.25),
        ("g (/app/a.py:1)", 0.5, 0.5),
    ]
    assert [(one.frames[0].text, one.change) for one in diff.by_frame()] == [
        ("f (/app/a.py:1)", -0.25),
        ("h (/app/a.py:1)", 0.25),
        ("g (/app/a.py:1)", 0),
        ("main", 0),
    ]


def test_two_columns_have_one_scale():
    """As difffolded.pl -n writes them: those before as if both had the same sum."""
    diff = compare(spent(f=50, g=50), spent(f=50, g=150))

    assert sorted(folded_differences(diff)) == [
        f"trainer;main;f (/app/a.py:1) {100 * MS} {50 * MS}",
        f"trainer;main;g (/app/a.py:1) {100 * MS} {150 * MS}",
    ]


def test_the_text_lists_frames_that_changed_most():
    """With both shares, and how many points that is."""
    diff = compare(spent(f=50, g=50, source="a"), spent(f=10, g=80, h=10, source="b"))

    lines = text_of(diff, limit=2).splitlines()
    assert lines[0].startswith("A: a: ")
    assert [line for line in lines if "points" in line or "→" in line] == [
        "   50.0% →  10.0% (-40.0)  f (/app/a.py:1)",
        "   50.0% →  80.0% (+30.0)  g (/app/a.py:1)",
    ]
    assert "and 1 frame more that changed less" in lines


def test_the_document_is_as_its_schema_says():
    """Whole stacks, frames, and both sides with all that keeps them from being complete."""
    document = make_diff_document(compare(spent(f=50, g=50), report_of(kind=CPU)), 2)

    STACKS_DIFF.validate(document)
    assert (document["before"]["total"], document["after"]["total"]) == (100 * MS, 1_100 * MS)
    assert document["after"]["coverage"]["samples"] == 102
    assert document["stacks_left_out"] == 7
    assert len(document["frames"]) == 2
    assert document["stacks"][0] == {
        "frames": ["trainer", "main", "f (/app/a.py:1)"],
        "before": 50 * MS,
        "after": 0,
        "before_share": 0.5,
        "after_share": 0,
        "change": -0.5,
    }


def test_what_grew_is_red_and_what_shrank_is_blue():
    """What is gone has a box as well, and what did not change has no colour."""
    picture = draw_difference(compare(spent(f=50, g=50), spent(h=50, g=50)))

    boxes = {
        box.split("\n")[0]: box.split('fill="')[1].split('"')[0]
        for box in picture.split("<title>")[1:]
    }
    assert boxes["f (/app/a.py:1)"].startswith("hsl(222 ")
    assert boxes["h (/app/a.py:1)"].startswith("hsl(4 ")
    assert boxes["g (/app/a.py:1)"] == boxes["main"] == boxes["all"] == "hsl(0 0% 93%)"
    assert "50.0% →   0.0% (-50.0)" in picture


def test_nothing_differs_from_itself():
    """In every form."""
    diff = compare(report_of(), report_of())

    assert {change.change for change in (*diff.changes(), *diff.by_frame())} == {0}
    assert "nothing changed" in text_of(diff)
    assert all(line.split()[-1] == line.split()[-2] for line in folded_differences(diff))
    picture = draw_difference(diff)
    assert "hsl(0 0% 93%)" in picture
    assert "hsl(4 " not in picture
    assert "hsl(222 " not in picture


def test_what_is_empty_can_be_compared():
    """A capture in which nothing was sampled: all is new, or all is gone."""
    empty = report_of(capture(), kind=CPU)

    assert [one.change for one in compare(empty, spent(f=5)).changes()] == [1]
    assert [one.change for one in compare(spent(f=5), empty).changes()] == [-1]
    assert list(folded_differences(compare(spent(f=5), empty))) == [
        f"trainer;main;f (/app/a.py:1) {5 * MS} 0"
    ]
    assert compare(empty, empty).stacks == ()
    STACKS_DIFF.validate(make_diff_document(compare(empty, empty), 5))
    assert "<svg" in difference_page(compare(empty, empty), "x")


functions = st.dictionaries(
    st.sampled_from("abcdef"), st.floats(0.000001, 1e9, allow_nan=False), min_size=1
)


@given(functions, functions)
def test_all_that_grows_is_taken_from_something(before, after):
    """Shares of each side are a whole, so that changes come to nothing."""
    diff = compare(spent(**before), spent(**after))

    changes = diff.changes()
    assert abs(sum(one.change for one in changes)) < 1e-9
    assert abs(sum(one.before for one in changes) - 1) < 1e-9
    assert [abs(one.change) for one in changes] == sorted(
        (abs(one.change) for one in changes), reverse=True
    )


@pytest.mark.parametrize("name", EVIL)
def test_names_are_text_and_nothing_else(name):
    """In the page, the lines and the document."""
    diff, harmless = (
        compare(spent(f=1, **{text: 1}), spent(**{text: 3})) for text in (name, "harmless")
    )

    evil, page = (Seen(difference_page(one, "x", ["about"])) for one in (diff, harmless))
    assert evil.elements == page.elements
    assert all(line.isprintable() for line in folded_differences(diff))
    assert {
        c for c in text_of(diff) + to_text(make_diff_document(diff, 9)) if not c.isprintable()
    } == {"\n"}


def test_the_page_says_what_it_compares():
    """Both sides, and what the width of a box is."""
    page = difference_page(compare(report_of(), report_of()), "wall", ["A is x.", "B is y."])

    assert "<p>A is x.</p><p>B is y.</p><p>Width is the mean of both shares" in page
