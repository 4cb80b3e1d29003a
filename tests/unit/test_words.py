"""Words that texts for users avoid: options, help, descriptions, columns and error messages."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "otel_gpu"
GENERATED_PAGES = ("cli", "configuration", "metrics", "store-schema", "support")
# Phrases that a newcomer has to decode, or metaphors of this house.
AVOIDED = (
    *("of which", "of whom", "whoever", "whomever", "somebody", "nobody", "meanwhile"),
    *("again and again", "so many", "as far as", "likewise", "told", "tells", "says", "said"),
    *("feeder", "feeds", "rhythm", "stretch", "stretches", "stranger", "keeper", "ledger"),
    *("process image", "memory-bound", "is no list", "is no dictionary"),
)
_PATTERN = re.compile(rf"(?<![\w`-])({'|'.join(map(re.escape, AVOIDED))})(?![\w`-])", re.IGNORECASE)
# Parts of the door, which is being renamed.
_LATER = "door"


def _found(texts: Iterator[tuple[str, str]]) -> list[str]:
    return [
        f"{where}: {match[0]}: {text[:100]}"
        for where, text in texts
        for match in [_PATTERN.search(text)]
        if match and _LATER not in text.lower()
    ]


def _error_texts() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts: list[ast.AST] = []
            if isinstance(node, ast.Raise) and node.exc is not None:
                parts.append(node.exc)
            if isinstance(node, ast.keyword) and node.arg == "hint":
                parts.append(node.value)
            for part in parts:
                for text in ast.walk(part):
                    if isinstance(text, ast.Constant) and isinstance(text.value, str):
                        yield f"{path.relative_to(ROOT)}:{text.lineno}", text.value


def _registry_texts() -> Iterator[tuple[str, str]]:
    registry = yaml.safe_load((PACKAGE / "export" / "semconv.yaml").read_text(encoding="utf-8"))
    for section, items in registry.items():
        if isinstance(items, dict):
            for name, item in items.items():
                if isinstance(item, dict):
                    yield f"{section}.{name}", f"{item.get('brief', '')} {item.get('note', '')}"


@pytest.mark.parametrize("name", GENERATED_PAGES)
def test_generated_pages_avoid_words_that_have_to_be_decoded(name):
    """Help, options, columns and the support page come from code."""
    lines = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8").splitlines()

    assert _found((f"{name}.md:{at}", line) for at, line in enumerate(lines, 1)) == []


def test_descriptions_of_telemetry_avoid_these_words():
    """The briefs and notes that metrics carry to backends."""
    assert _found(_registry_texts()) == []


def test_errors_and_hints_avoid_these_words():
    """An error states what is wrong, and what to do."""
    assert _found(_error_texts()) == []
