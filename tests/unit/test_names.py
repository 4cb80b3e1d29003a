"""Names in the code: no class name stands twice, and no metaphor comes back."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import otel_gpu

PACKAGE = Path(otel_gpu.__file__).parent
# Words that were replaced by those of the field, in the singular.
DENIED = frozenset(
    (
        "arrival",
        "board",
        "corridor",
        "crowd",
        "directory",
        "door",
        "face",
        "feeder",
        "findings",
        "glossary",
        "introduction",
        "keeper",
        "leftover",
        "ledger",
        "onlooker",
        "patient",
        "reasoning",
        "somebody",
        "spell",
        "stranger",
        "surrounding",
        "tally",
        "whereabouts",
        "whoever",
        "whom",
        "rate-limited",
    )
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")


def trees() -> Iterator[tuple[str, ast.Module]]:
    """Yield the path of each module in the package, and its syntax tree."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        yield name, ast.parse(path.read_text(encoding="utf-8"))


def words(name: str) -> set[str]:
    """Return the words of a name, also without the s of a plural."""
    found = {word.lower() for word in _WORD.findall(name)}
    return found | {word.removesuffix("s") for word in found}


def test_no_public_class_name_stands_twice():
    """A class is a noun that no other class in the package has."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_no_name_of_a_class_function_or_module_has_a_denied_word():
    """Names are in the words of the field."""
    found: list[str] = []
    for path, tree in trees():
        names = set(path.removesuffix(".py").split("/"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(node.name)
        found += [f"{path}: {name}" for name in sorted(names) if words(name) & DENIED]
    assert found == []
