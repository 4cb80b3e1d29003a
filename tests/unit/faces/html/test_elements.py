"""Elements: whatever text they are given, a browser sees text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.faces.html.elements import Markup, clip, element, join, join_with, number, raw
from tests.unit.faces.html.pages import Seen

HOSTILE = "</p><script>alert(1)</script>\"' onload=x &lt;\u202e\x00"


@given(st.text(), st.text())
def test_text_stays_text(text, value):
    """
    No text makes an element or an attribute, wherever it stands.
    """
    seen = Seen(element("p", text, [text, None, (text,)], title=value))

    assert seen.elements == [("p", ("title",))]


def test_what_would_be_obeyed_is_shown():
    """
    Markup is escaped; characters without a shape, and those that turn the text, are written out.
    """
    assert element("p", HOSTILE, title=HOSTILE) == (
        '<p title="&lt;/p&gt;&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27; onload=x &amp;lt;'
        '\\u202e\\x00">&lt;/p&gt;&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27; onload=x &amp;lt;'
        "\\u202e\\x00</p>"
    )


def test_markup_is_not_escaped_again():
    """
    Elements can be put into elements.
    """
    assert element("p", element("b", "<"), "<") == "<p><b>&lt;</b>&lt;</p>"
    assert isinstance(element("p"), Markup)
    assert join(["a", element("b"), None, ("<",)]) == "a<b></b>&lt;"
    assert join_with(" < ", ["a", None, "", "b"]) == "a &lt; b"


def test_attributes_can_be_left_out():
    """
    A place in the code decides about an attribute without an if.
    """
    made = element("rect", class_="a", data_value=1.5, open=True, id=None, hidden=False)

    assert made == '<rect class="a" data-value="1.5" open></rect>'


@pytest.mark.parametrize("tag", ["meta", "br"])
def test_void_elements_have_no_end(tag):
    """
    A browser would take it for another element's.
    """
    assert element(tag) == f"<{tag}>"


@pytest.mark.parametrize(
    ("text", "most", "clipped"),
    [
        ("short", 5, "short"),
        ("a" * 9_000 + "b" * 1_000, 64, "a" * 32 + "… (10,000 characters) …"[:20]),
    ],
)
def test_long_text_is_clipped_in_its_middle(text, most, clipped):
    """
    Its end is kept, which may tell it from others, and its length is said.
    """
    short = clip(text, most)

    assert len(short) <= most
    assert short.startswith(clipped[:5])
    assert (len(text) <= most) == (short == text)
    assert short[-5:] == text[-5:]
    assert ("10,000 characters" in short) == (len(text) > most)


def test_a_page_is_not_made_of_one_name():
    """
    Whatever is forgotten to be clipped elsewhere is clipped here.
    """
    assert len(element("p", "x" * 1_000_000)) < 1_010


@pytest.mark.parametrize("source", ["a</script>b", "a</STYLE b", "</script"])
def test_a_source_that_would_end_its_element_is_refused(source):
    """
    Rather no page than one that runs what follows.
    """
    with pytest.raises(ValueError, match="would end"):
        raw("script", source)


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.0, "0"), (33.3333333, "33.333"), (100.0, "100"), (-0.5, "-0.5"), (float("nan"), "0")],
)
def test_coordinates_are_short(value, written):
    """
    A page holds thousands of them, and nobody sees a thousandth of a pixel.
    """
    assert number(value) == written
