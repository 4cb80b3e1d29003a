"""Every key that a page or a shipped file names is one, and every one is in the reference."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from otel_gpu import config, options

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "configuration.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("deploy/**/*.md")])
AGENTS = sorted((ROOT / "deploy").rglob("config.yaml"))
COLLECTORS = sorted((ROOT / "collector-config").glob("*.yaml"))
DEPLOYED = sorted(path for path in (ROOT / "deploy").rglob("*") if path.is_file())

# What is no option: named by the pages about it, and read elsewhere.
OTHERS = {config.FILE_VARIABLE, "OTEL_GPU_PRELOAD", "OTEL_GPU_MCP_TOKEN", "OTEL_GPU_WHEEL_LIBBPF"}
# The page about troubles shows what a wrong name leads to.
MISTAKES = {"OTEL_GPU_SPANS_MOED"}
# The changelog and decisions name what is gone.
REMOVED = {"nccl.ras", "nccl.ras_interval_s"}
TESTS_OWN = ("OTEL_GPU_TEST_", "OTEL_GPU_BENCH_", "OTEL_GPU_SOAK_")
VARIABLES = {option.variable for option in options.OPTIONS.values()}
# `spans.mode`, `stacks.mode: none`, `explain.enabled: false`
KEY = re.compile(rf"`((?:{'|'.join(options.SECTIONS)})\.[a-z_]+)(?:`|: )")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def reference() -> Iterator[tuple[str, str]]:
    """Each key of the reference with its environment variable."""
    section = ""
    for line in REFERENCE.read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"## `(\w+)`", line):
            section = heading[1]
        elif row := re.match(r"\| `(\w+)` \|.*\| `(OTEL_GPU_\w+)` \|", line):
            yield f"{section}.{row[1]}", row[2]


def unknown_variables(text: str) -> set[str]:
    # What ends in an underscore is the beginning of many names.
    named = set(re.findall(r"\bOTEL_GPU_[A-Z0-9_]*[A-Z0-9]\b(?!_|<)", text))
    return {name for name in named - VARIABLES - OTHERS if not name.startswith(TESTS_OWN)}


def test_the_reference_has_every_option_and_no_other() -> None:
    """Key by key, with its variable, in both directions."""
    assert dict(reference()) == {key: o.variable for key, o in options.OPTIONS.items()}


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_options_that_a_page_names_exist(path: Path) -> None:
    """As a key, as a variable, or in a piece of YAML that has a section of ours."""
    text = path.read_text(encoding="utf-8")
    keys = set(KEY.findall(text))
    for block in re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        document = yaml.safe_load(block)
        if isinstance(document, dict) and document.keys() <= options.SECTIONS.keys():
            keys |= {f"{section}.{key}" for section, values in document.items() for key in values}

    # A module may have a section's name: `export.py`.
    if path.name == "CHANGELOG.md" or path.parent.name == "decisions":
        keys -= REMOVED
    assert {key for key in keys - options.OPTIONS.keys() if not key.endswith(".py")} == set()
    assert unknown_variables(text) <= MISTAKES


@pytest.mark.parametrize("path", AGENTS, ids=name_of)
def test_shipped_configurations_are_read_without_complaint(path: Path) -> None:
    """By the reader that the agent has, to which an unknown key is an error."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))

    read = config.load(path, environ={}, overrides={})

    assert document
    for section, values in document.items():
        assert {key: getattr(getattr(read, section), key) for key in values} == values


def test_there_are_shipped_configurations() -> None:
    """Of the service, of the DaemonSet and of the sidecar: the test above has seen them."""
    assert len(AGENTS) >= 3


@pytest.mark.parametrize("path", [*DEPLOYED, *COLLECTORS], ids=name_of)
def test_variables_in_shipped_files_exist(path: Path) -> None:
    """A variable that nobody reads would be set in vain."""
    assert unknown_variables(path.read_text(encoding="utf-8")) == set()


def test_variables_of_the_collector_are_on_their_page_and_nowhere_else() -> None:
    """What a file reads from the environment is in the table, and what is there is read."""
    page = (ROOT / "docs" / "collector.md").read_text(encoding="utf-8")
    section = page.partition("## Settings from the environment")[2].partition("\n## ")[0]
    rows = {
        name
        for row in re.findall(r"^\| (`[A-Z].*?) \|", section, re.MULTILINE)
        for name in re.findall(r"`([A-Z0-9_]+)`", row)
    }
    texts = "".join(path.read_text(encoding="utf-8") for path in COLLECTORS)

    assert rows == set(re.findall(r"(?:\$\{env:|node_from_env_var: )(\w+)", texts))


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("OTEL_GPU_SPANS_MODE=full", set()),
        ("OTEL_GPU_SPANS_MOED=full", {"OTEL_GPU_SPANS_MOED"}),
        ("OTEL_GPU_<SECTION>_<KEY>", set()),
        ("OTEL_GPU_TEST_CACHE", set()),
    ],
)
def test_an_unknown_variable_is_seen(text: str, unknown: set[str]) -> None:
    """The test of the tests above."""
    assert unknown_variables(text) == unknown
