"""Markup: whatever text a template is given, a browser sees text."""

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from otel_gpu.report.render.html.markup import (
    ENVIRONMENT,
    Quiet,
    as_source,
    clip,
    names_for_templates,
    number,
    show,
)
from otel_gpu.report.wording.sentences import Code, FrameLine, Name, Strong
from otel_gpu.wire.frames import Frame
from tests.unit.report.render.html.pages import Seen

HOSTILE = "</p><script>alert(1)</script>\"' onload=x &lt;\u202e\x00"
SHOWN = "&lt;/p&gt;&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39; onload=x &amp;lt;\\u202e\\x00"
PARAGRAPH = ENVIRONMENT.from_string('<p title="{{ value }}">{{ text }}</p>')


def paragraph(text, value=""):
    return PARAGRAPH.render(text=text, value=value)


@given(st.text(), st.text())
def test_text_stays_text(text, value):
    """No text makes an element or an attribute, wherever it stands."""
    seen = Seen(paragraph((text, None, (text,)), value))

    assert seen.elements == [("p", ("title",))]


@pytest.mark.parametrize("kind", [Name, Code, Strong, Quiet])
def test_what_would_be_obeyed_is_shown(kind):
    """Markup is escaped; characters that have no shape, or turn the text, are written out."""
    assert paragraph(HOSTILE, HOSTILE) == f'<p title="{SHOWN}">{SHOWN}</p>'
    assert SHOWN in paragraph(kind(HOSTILE))


def test_markup_is_not_escaped_again():
    """Parts of a sentence stand beside each other, each in its own element."""
    assert paragraph(("a", Markup("<b></b>"), None, ("<",))) == '<p title="">a<b></b>&lt;</p>'
    assert show(Code("f<")) == "<code><bdi>f&lt;</bdi></code>"


@pytest.mark.parametrize(
    ("text", "most", "clipped"),
    [
        ("short", 5, "short"),
        ("a" * 9_000 + "b" * 1_000, 64, "a" * 32 + "… (10,000 characters) …"[:20]),
    ],
)
def test_long_text_is_clipped_in_its_middle(text, most, clipped):
    """Its end is kept, which may tell it from others, and its length is said."""
    short = clip(text, most)

    assert len(short) <= most
    assert short.startswith(clipped[:5])
    assert (len(text) <= most) == (short == text)
    assert short[-5:] == text[-5:]
    assert ("10,000 characters" in short) == (len(text) > most)


def test_a_page_is_not_made_of_one_name():
    """Whatever is forgotten to be clipped elsewhere is clipped here."""
    assert len(paragraph("x" * 1_000_000)) < 1_020


def test_a_long_name_of_cpp_is_short_and_whole_on_hover():
    """A kernel's name can be 600 characters long; its line is still one that can be read."""
    whole = (
        "void at::native::(anonymous namespace)::masked_fill_kernel<"
        + ", ".join(["std::integral_constant<int, 4>"] * 14)
        + ">(at::TensorIterator&, c10::Scalar const&)::{lambda()#1}::operator()() const"
    )
    frame = Frame("native", whole, module="libtorch_cuda.so")

    for shown in (show(frame), show(FrameLine(frame))):
        seen = Seen(shown)
        assert seen.text == "masked_fill_kernel (libtorch_cuda.so)"
        assert seen.values_of("title") == [f"{whole} (libtorch_cuda.so)"]


@pytest.mark.parametrize("source", ["a</script>b", "a</STYLE b", "</script"])
def test_a_source_that_would_end_its_element_is_refused(source):
    """Rather no page than one that runs what follows."""
    with pytest.raises(ValueError, match="would close"):
        as_source(source)


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.0, "0"), (33.3333333, "33.333"), (100.0, "100"), (-0.5, "-0.5"), (float("nan"), "0")],
)
def test_coordinates_are_short(value, written):
    """A page holds thousands of them, and nobody sees a thousandth of a pixel."""
    assert number(value) == written


def test_two_things_of_one_name_are_refused():
    """The later one would win, and a template could mean the other."""
    one, other = ModuleType("one"), ModuleType("other")
    one.places_of = lambda: "here"
    one.LIMIT = other.LIMIT = 7

    assert names_for_templates(one, other, more={})["LIMIT"] == 7
    other.places_of = lambda: "there"
    with pytest.raises(ValueError, match="two things named places_of"):
        names_for_templates(one, other, more={})
    with pytest.raises(ValueError, match="named range"):
        names_for_templates(more={"range": one.places_of})
