"""The page: complete, the same each time, bounded, and inert whatever the traced are called."""

import base64
import hashlib
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from otel_gpu.report.memory.memory_calls import ROLES
from otel_gpu.report.render.html.page import MOST_IN_FULL, make_page
from otel_gpu.report.render.html.shapes import MOST_ROWS
from otel_gpu.report.wording.phrases import CLASSES
from tests.activities import SECOND, image
from tests.unit.report.render.html.pages import MS, Seen, report_named
from tests.unit.report.samples import incident, preempted
from tests.unit.report.stack_samples import report_of as stacks_of

PLAIN = Seen(make_page(report_named("x")))
TAGS = {
    *("html", "head", "meta", "title", "style", "script", "body", "header", "nav", "main"),
    *("section", "article", "footer", "figure", "figcaption", "div", "p", "span", "b", "a"),
    *("h1", "h2", "h3", "h4", "ul", "ol", "li", "dl", "dt", "dd", "details", "summary"),
    *("table", "thead", "tbody", "tr", "th", "td", "time", "code", "bdi", "svg", "rect"),
}
ATTRIBUTES = {
    *("lang", "charset", "http-equiv", "content", "name", "class", "id", "href", "open", "title"),
    *("role", "tabindex", "scope", "data-value", "aria-label", "aria-hidden"),
    *("viewbox", "preserveaspectratio", "x", "y", "width", "height"),
}
HOSTILE = [
    "</script><script>alert(1)</script>",
    "</style><link rel=stylesheet href=//example.org>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "<!-- --><![CDATA[<b>]]>",
    "&lt;b&gt;&#60;b&#62;",
    "javascript:alert(1)",
    "\x00\x1b[2J\r\n\t\x7f\x9b",
    "\u202e\u2066\u200b\ufeff\u2028\ud800",
    "10 kB " + "<a>" * 3_400,
    "Z͑ͫ" + "\u0300" * 500,
    "{who}{0}%s${x}`",
]


def policy_of(seen):
    (policy,) = [value for value in seen.values_of("content") if "default-src" in value]
    return policy


def hash_of(source):
    digest = hashlib.sha256(source.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def test_nothing_is_in_the_page_that_is_not_ours():
    """Its elements and attributes are these; none can run or load anything."""
    assert {tag for tag, _ in PLAIN.elements} == TAGS
    assert {name for _, names in PLAIN.elements for name in names} == ATTRIBUTES


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_changes_the_page(name):
    """Whatever everything is called, the elements and attributes are those of a page about "x"."""
    seen = Seen(make_page(report_named(name, kind=name, severity=name, verdict=name)))
    plain = Seen(make_page(report_named("x", kind="x", severity="x", verdict="x")))

    assert seen.elements == plain.elements
    assert seen.sources == plain.sources
    assert seen.values_of("class") == plain.values_of("class")
    assert seen.values_of("href") == plain.values_of("href")
    assert seen.values_of("id") == plain.values_of("id")
    assert {c for c in "".join(seen.texts) if not c.isprintable()} <= {"\n"}


@settings(max_examples=50)
@given(st.text(min_size=1).filter(lambda name: name not in {*ROLES, *CLASSES}))
@example("/")
def test_no_text_changes_the_page(name):
    """Nor does any other text, but what has words of its own: a call that allocates, a kind of time."""
    assert Seen(make_page(report_named(name))).elements == PLAIN.elements


def test_links_stay_in_the_page():
    """There is nothing to follow to anywhere else, and each link leads to something."""
    targets = PLAIN.values_of("href")

    assert len(targets) > 10
    assert {target[0] for target in targets} == {"#"}
    assert {target[1:] for target in targets} - set(PLAIN.values_of("id")) == set()
    assert len(set(PLAIN.values_of("id"))) == len(PLAIN.values_of("id"))


def test_the_policy_allows_this_page_and_nothing_else():
    """Style and script are allowed by their hashes, requests not at all."""
    style, script = (hash_of(PLAIN.sources[source]) for source in ("style", "script"))

    assert policy_of(PLAIN) == (
        f"default-src 'none'; style-src {style}; script-src {script}; "
        "base-uri 'none'; form-action 'none'"
    )


@pytest.mark.parametrize("source", ["style", "script"])
def test_our_own_sources_load_nothing(source):
    """What the policy would refuse is not tried."""
    text = PLAIN.sources[source]

    assert re.findall(r"url\(|@import|https?:|fetch|XMLHttp|innerHTML|eval|import\b", text) == []


def test_the_worst_comes_first():
    """The heading says what happened, and who did it."""
    page = make_page(report_named("x"))

    heading = Seen(re.search("<h1>.*?</h1>", page)[0]).text
    assert heading == "It waited for data from x (42/43), which slept"


@pytest.mark.parametrize("order", [1, -1], ids=["longest first", "worst first"])
def test_a_fault_is_told_before_a_longer_wait_for_the_gpu(order):
    """The most time lost is told too, but not as the headline: it may be nobody's fault."""
    wait = preempted(image(), 0, "w", duration_ns=900 * MS)
    fault = preempted(image(), SECOND, "f", duration_ns=50 * MS)
    both = (incident(wait, severity="low", name="w"), incident(fault, severity="high", name="f"))
    report = report_named("x")._replace(incidents=both[::order])

    page = make_page(report)

    text = Seen(page).text
    longest = 1 if order == 1 else 2
    assert f'<a href="#incident-{longest}">Most time</a>' in page

    assert "high trainer (42) lost 50 ms in a slow cudaLaunchKernel cc1plus (900/901) took" in text
    assert "Most time was lost to something else: trainer (42) lost 900 ms" in text


@pytest.mark.parametrize(
    ("changed", "heading"),
    [
        (
            {"incidents": ()},
            "Nothing went wrong: no call was far slower than usual, hung or failed",
        ),
        ({"incidents": (), "apis": ()}, "No CUDA call was counted"),
    ],
)
def test_quiet_is_a_result(changed, heading):
    """A capture without incidents says so, and one without calls is not called good."""
    text = Seen(make_page(report_named("x")._replace(**changed))).text

    assert heading in text
    assert "None: no call and no gap was far slower than usual" in text


def test_where_the_time_went_is_the_first_section():
    """It answers why the GPU is not busy; all else is about parts of it."""
    sections = [value for tag, name, value in PLAIN.values if (tag, name) == ("section", "id")]

    assert sections[:3] == ["where", "verdict", "incidents"]


def test_parts_that_have_nothing_are_left_out():
    """An empty capture has a page."""
    empty = report_named("x")._replace(
        processes=(), apis=(), balances=(), incidents=(), chains=(), culprit_times=(),
        off_cpu=(), time_buckets=(), load=None, losses={}, notes=(),
    )  # fmt: skip

    seen = Seen(make_page(empty))

    assert [value for tag, name, value in seen.values if (tag, name) == ("section", "id")] == [
        "verdict",
        "incidents",
        "unknown",
    ]
    assert "Nothing was lost on the way from the kernel." in seen.text


def test_the_same_report_makes_the_same_page():
    """No date of writing, no random name."""
    assert make_page(report_named("x")) == make_page(report_named("x"))


def test_the_folder_of_a_recording_is_not_told():
    """A page is sent to others."""
    assert "/folder/" not in make_page(report_named("x"))


def many_incidents(count):
    chains = [preempted(image(), n * 60 * SECOND, f"c{n}") for n in range(count)]
    return tuple(incident(chain, name=f"incident-no-{n}") for n, chain in enumerate(chains))


def test_every_incident_is_in_the_page():
    """The worst are told in full, the others in a row each."""
    report = report_named("x")._replace(incidents=many_incidents(60))

    seen = Seen(make_page(report))

    assert [n for n in range(60) if f"incident-no-{n} " not in seen.text + " "] == []
    assert f"{60 - MOST_IN_FULL} more incidents, which lost less time" in seen.text
    assert {f"incident-{n}" for n in range(1, 61)} <= set(seen.values_of("id"))


def test_a_page_is_bounded():
    """
    As much as a report can hold, with names of 10 kB that all have to be escaped: what is
    left out is counted.
    """
    name = "<&>" * 3_400
    report = report_named(name)
    worst = report.incidents[0]
    full = worst._replace(chains=worst.chains * 10, advice=(name,) * 20)
    report = report._replace(
        processes=report.processes * 2_000,
        apis=report.apis * 8_000,
        balances=report.balances * 2_000,
        incidents=(full,) * 512,
        culprit_times=report.culprit_times * 5_000,
        off_cpu=report.off_cpu * 30_000,
        losses={f"{name}{n}": n for n in range(1_000)},
        notes=(name,) * 100,
    )

    page = make_page(report)

    assert len(page) < 10_000_000
    seen = Seen(page)
    assert f"{16_000 - MOST_ROWS:,} more are not shown." in seen.text
    assert f"{10_000 - MOST_ROWS:,} more are not shown." in seen.text


def test_flame_graphs_stand_in_their_own_section():
    """Their script comes with them, and without any weight there are none."""
    report = stacks_of()

    page = make_page(report_named("x"), flames=[report, report._replace(rows=())])

    seen = Seen(page)
    assert '<section id="flames"><h2>Flame graphs</h2>' in page
    assert page.count('<svg xmlns="http://www.w3.org/2000/svg" class="flamegraph"') == 1
    assert "flames" not in PLAIN.values_of("id")
    assert "svg.flamegraph" not in PLAIN.sources["script"]
    assert "svg.flamegraph" in seen.sources["script"]
    assert hash_of(seen.sources["script"]) in policy_of(seen)
