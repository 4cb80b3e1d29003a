"""The documentation: generated pages are up to date, links lead somewhere."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from otel_gpu.cli import commands
from otel_gpu.config import OPTIONS
from otel_gpu.mcp.tools import TOOLS
from tools.generate_docs import PAGES

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    "bpf",
    "preload",
    "otel_gpu",
    "tools",
    "tests",
    "benchmarks",
    "docs",
    "examples",
    "deploy",
)
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])


def name_of(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_say_what_the_code_says(name):
    """``make docs`` was run after the last change of an option or a verb."""
    assert (ROOT / name).read_text(encoding="utf-8") == PAGES[name]()


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_to_files_lead_somewhere(path):
    """A reader who follows a link inside the project finds a page."""
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]

    assert [target for target in local if not (path.parent / target).exists()] == []


def test_every_option_is_on_its_page():
    """An option without documentation does not exist for an operator."""
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")

    assert [o.key for o in OPTIONS.values() if f"| `{o.name}` |" not in text] == []
    assert [o.key for o in OPTIONS.values() if f"`{o.variable}`" not in text] == []


def test_every_verb_is_on_its_page():
    """So is a verb."""
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")

    assert [name for name in commands.VERBS if f"## `otel-gpu {name}`" not in text] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_commands_in_the_documentation_exist(path):
    """Every ``otel-gpu VERB`` and ``make TARGET`` that a page shows is one."""
    text = path.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    verbs = set(re.findall(r"^\s*(?:\S*/)?otel-gpu ([a-z]+)\b", text, re.MULTILINE))
    targets = set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE))

    assert verbs - set(commands.VERBS) == set()
    assert {target for target in targets if f"\n{target}:" not in makefile} == set()


def test_nothing_names_a_folder_of_one_machine():
    """What works in one person's folders only does not belong into the project."""
    folders = [b"/" + name for name in (b"work/", b"home/", b"root/", b"tmp/venv")]
    suffixes = {".py", ".md", ".c", ".h", ".sh", ".yaml", ".toml", ".lock"}
    places = [p for folder in SOURCES for p in (ROOT / folder).rglob("*")] + list(ROOT.iterdir())
    sources = [path for path in places if path.suffix in suffixes and path.is_file()]

    assert len(sources) > 50
    assert [
        (str(path.relative_to(ROOT)), folder)
        for path in sources
        for folder in folders
        if re.search(rb"(?<![\w.~}])" + re.escape(folder), path.read_bytes())
    ] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_no_table_has_a_row_twice(path):
    """Two rows about one thing disagree sooner or later."""
    lines = path.read_text(encoding="utf-8").splitlines()
    pairs = pairwise(lines)
    alike = [one for one, other in pairs if one.startswith("| ") and one[:80] == other[:80]]

    assert [one for one in alike if len(one) > 80] == []


def test_pages_say_how_many_tools_an_assistant_has():
    """As many as there are, wherever it is said."""
    words = {"eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15}
    said = [
        (name_of(path), words.get(word.lower(), word))
        for path in DOCUMENTS
        for word in re.findall(
            rf"\b({'|'.join(words)}|\d+) tools\b", path.read_text(encoding="utf-8"), re.IGNORECASE
        )
    ]

    assert said
    assert {number for _, number in said} == {len(TOOLS)}


def test_each_cache_of_the_agent_is_on_the_page_of_bounds():
    """The generator finds every cache that is registered, and every `Recent` and `Fifo`, wherever it is made."""
    text = (ROOT / "docs" / "internals" / "bounds.md").read_text(encoding="utf-8")
    package = ROOT / "otel_gpu"
    missing = []
    for path in package.rglob("*.py"):
        if path.parent.name == "limits":
            continue
        source, module = path.read_text(encoding="utf-8"), path.relative_to(package)
        names = re.findall(r'(?:CACHES\.register\w*|@remembered)\(\s*"(\w+)"', source)
        missing += [(module, name) for name in names if f"| `{name}` |" not in text]
        if len(re.findall(r"= (?:Recent|Fifo)\(", source)) > text.count(f"| `{module}` |"):
            missing.append((module, "Recent"))

    assert missing == []


def test_each_test_that_the_page_of_threats_names_exists():
    """And each of its rows names one."""
    text = (ROOT / "docs" / "threats.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
    rows = [
        line
        for line in text.splitlines()
        if re.match(r"\| (user|program|container|author|peer|reader|any) \|", line)
    ]
    rows = [row for row in rows if row.count(" | ") == 3]

    assert len(rows) > 40
    assert [row for row in rows if "::" not in row] == []
    assert [
        f"{file}::{test}"
        for file, test in named
        if not (path := ROOT / "tests" / file).exists()
        or f"def {test}(" not in path.read_text(encoding="utf-8")
    ] == []


def test_functions_that_the_architecture_names_are_where_it_says():
    """So that a newcomer finds the start of each question."""
    text = (ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")
    file, name = r"`([\w/.]+\.(?:py|h|c))`", r"`(?:enum )?([\w.]+)`"
    named = [
        *re.findall(rf"{file}: {name}", text),
        *((path, function) for function, path in re.findall(rf"{name} in {file}", text)),
    ]
    assert len(named) >= 8
    for path, function in named:
        found = next(
            folder / path for folder in (ROOT, ROOT / "otel_gpu") if (folder / path).is_file()
        )
        assert re.search(rf"\b{function.split('.')[-1]}\b", found.read_text(encoding="utf-8")), path
