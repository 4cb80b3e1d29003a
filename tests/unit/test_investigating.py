"""The questions of docs/investigating.md are answered as the page says."""

import re

import pytest

from otel_gpu.mcp.tools import TOOLS
from tests import investigating
from tests.investigating import LEFT_OUT, PAGE, answer_of, missing, prepare, refresh, refresh_page

PREPARING, *EXAMPLES = investigating.examples(PAGE.read_text(encoding="utf-8"))

# A page of one question, about a process that no recording knows.
SMALL = """\
# Questions

```sh
otel-gpu demo
```

## How much is allocated?

```mcp
otel_gpu/demo/recordings/allocator-churn.otelgpu get_memory_balance {}
```

```text
"source": "otel_gpu/demo/recordings/allocator-churn.otelgpu"
...
[9, "trainer.py", 7, 7, 1, 10, 10, 5]
```
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A folder with the recordings where the page says, and with the stores that it makes."""
    folder = tmp_path_factory.mktemp("checkout")
    prepare(folder, PREPARING)
    return folder


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.text[:60])
def test_the_answer_is_what_the_page_promises(example, checkout):
    """Each command and each call of the page, run on what we ship."""
    assert example.kind in {"sh", "mcp"}
    assert example.promised
    answered = answer_of(example, checkout)

    assert not missing(example.promised, answered), (
        f"{missing(example.promised, answered)!r} is not in the answer, or not there:\n{answered}\n"
        "If only figures are others: python -m tests.investigating --update"
    )


def test_every_question_has_an_answer():
    """A heading without something to run would be a question only."""
    text = PAGE.read_text(encoding="utf-8")
    questions = re.findall(r"^### (.*)$", text, flags=re.MULTILINE)

    assert len(questions) >= 28
    assert sorted(set(questions) - {example.heading for example in EXAMPLES}) == []


def test_every_tool_is_on_the_page():
    """What no question needs would not be there."""
    used = {re.search(r"(\w+) {", one.text)[1] for one in EXAMPLES if one.kind == "mcp"}

    assert used == {tool.name for tool in TOOLS}


def test_prose_has_no_figures():
    """Nothing but what is in blocks is made anew with the recordings."""
    prose = re.sub(
        r"^```.*?^```$|`[^`]*`",
        "",
        PAGE.read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )

    assert re.findall(r"\d+", prose) == []


@pytest.mark.parametrize(
    ("promised", "first_missing"),
    [
        ("a 1\n...\nb 2\n", ""),
        ("a 1\nc b 2\n", ""),
        ("a 2\n", "a 2"),
        ("a\n...\n1\n...\nb 3\n", "b 3"),
        ("b 2\n...\na 1\n", "a 1"),
        ("a 1\nb 2\n", "b 2"),
        ("c b 2\nd 5\n", "d 5"),
        ("d 4\n", "d 4"),
        ("14\n", "14"),
    ],
)
def test_a_promise_that_is_not_kept_is_seen(promised, first_missing):
    """
    Other figures, another order, parts of a number and what is left out without a mark are seen.
    """
    assert missing(promised, "a  1\n\nc b 2\nd 4.5, 0.14") == first_missing


@pytest.mark.parametrize(
    ("promised", "answered", "fresh"),
    [
        ("<- fork 196 ms (99 %), by a (71)", "<- fork 1.7 s (<1 %), by a (1,024)", None),
        ('"id": "slow-3-4-17", "us": 2.5', '"id": "slow-31-41-5", "us": -1071', None),
        ('"span_id": "00ff00ff00ff00ff"', '"span_id": "0123456789abcdef"', None),
        ("+0.2 s 12 ### stalled 69 %", "+1 s  1,300  # stalled 7 %", "+1 s 1,300 # stalled 7 %"),
        ("p50_us 3 lib.so.12 x86_64", "p50_us 5 lib.so.12 x86_64", None),
    ],
)
def test_figures_become_those_of_the_answer(promised, answered, fresh):
    """
    Durations, shares, counts, ids and bars are figures; digits in names are not, and white
    space stays the page's.
    """
    assert refresh(promised, f"before {answered} after").promised == (fresh or answered)


def test_what_still_holds_is_left_alone():
    """The second row is as it was, so that the first, which looks like it, is not taken for it."""
    promised = f"calls 40\n{LEFT_OUT}\nrow 12 ms\n"

    assert refresh(promised, "calls 41\nrow 11 ms\nrow 12 ms\n") == (
        f"calls 41\n{LEFT_OUT}\nrow 12 ms\n",
        (("40", "41"),),
        (),
    )


def test_a_line_that_is_lost_is_told_and_left_alone():
    """
    Lines before and after it are refreshed; of lines that belong together, the first is named.
    """
    promised = f"a 1\n{LEFT_OUT}\nb 2\nc 3\n{LEFT_OUT}\nd 4\n"

    assert refresh(promised, "a 5\nb 6\nno c\nd 8\n") == (
        f"a 5\n{LEFT_OUT}\nb 2\nc 3\n{LEFT_OUT}\nd 8\n",
        (("1", "5"), ("4", "8")),
        ("c 3",),
    )


def test_a_page_gets_the_figures_of_the_recordings(tmp_path):
    """120 allocations of 1 MiB each are what the scenario does, and frees what it allocates."""
    page, messages = refresh_page(SMALL, tmp_path)

    assert messages == []
    assert re.search(r'\[\d+, "trainer.py", 120, 120, 0, 125829120, 125829120, 0\]', page)
    assert re.sub(r"\[.*\]", "", page) == re.sub(r"\[.*\]", "", SMALL)


def test_questions_name_what_answers_above_them_name(tmp_path):
    """A process has another id in a new recording, and is asked about by that."""
    page = SMALL.replace("[9,", "[99999,") + (
        "```mcp\n"
        'otel_gpu/demo/recordings/allocator-churn.otelgpu get_processes {"pids": [99999]}\n'
        "```\n\n"
        '```text\n"calls": 7\n```\n'
    )

    fresh, messages = refresh_page(page, tmp_path)

    assert messages == []
    pid = re.search(r'\[(\d+), "trainer.py"', fresh)[1]
    assert pid != "99999"
    assert f'{{"pids": [{pid}]}}' in fresh
    assert '"calls": 480' in fresh


def test_the_command_says_what_is_stale_and_updates_it(tmp_path, monkeypatch, capsys):
    """It fails for what is stale, and, when it has updated that, for what is lost only."""
    page = tmp_path / "page.md"
    page.write_text(SMALL, encoding="utf-8")
    monkeypatch.setattr(investigating, "PAGE", page)

    assert investigating.main([]) == 1
    assert capsys.readouterr().out.startswith("stale: line 16: [")
    assert page.read_text(encoding="utf-8") == SMALL

    assert investigating.main(["--update"]) == 0
    assert capsys.readouterr().out.startswith("updated: line 16: [")
    assert investigating.main([]) == 0

    page.write_text(
        page.read_text(encoding="utf-8").replace("trainer.py", "other"), encoding="utf-8"
    )
    assert investigating.main(["--update"]) == 1
    lost = re.escape('How much is allocated?: not in the answer: [PID, "other", 120, ')
    assert re.match(lost.replace("PID", r"\d+"), capsys.readouterr().out)
