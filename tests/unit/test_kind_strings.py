"""Kinds, reasons, states and verdicts are members of enums, and each stands in one place."""

import ast
import importlib
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import pytest

import otel_gpu

PACKAGE = Path(otel_gpu.__file__).parent
# Other values are words of English: where "call" or "memory" stands, it is mostly no kind.
_DISTINCTIVE = re.compile(r"[a-z0-9]+([_-][a-z0-9]+)+")
# What is the same text and something else, by where it stands.
EXCEPTIONS = {
    # Scenarios take nothing from the agent: what they injected is the truth that it is measured by.
    "demo/": None,
    # Generated.
    "export/semconv.py": None,
    # The name of a table of SQLite.
    "recorder/playback.py": {"out_of_memory"},
    "recorder/rows/held_memory.py": {"out_of_memory"},
    "recorder/tables/memory.py": {"out_of_memory"},
    # What is adjusted at a time, in the log where that failed.
    "capture/session.py": {"on_cpu"},
    # Maps of the kernel side, a cache, and a field of an answer.
    "capture/bpf/programs.py": {"folded_times"},
    "capture/maps/thread_dump.py": {"folded_times"},
    "capture/maps/kernel_stacks.py": {"kernel_stacks"},
    "enrich/waits/kernel_waits.py": {"kernel_stacks"},
    "mcp/tools/stacks.py": {"kernel_stacks"},
    # A function of PyTorch.
    "explain/memory/allocator_churn.py": {"empty_cache"},
    # A counter of an adapter, as its driver names it.
    "wire/port_counters.py": {"out_of_sequence"},
}


def enums() -> Iterator[type[StrEnum]]:
    """Yield the enums of text that the package defines."""
    for module in pkgutil.walk_packages(otel_gpu.__path__, "otel_gpu."):
        if module.name.endswith("__main__"):
            continue
        for found in vars(importlib.import_module(module.name)).values():
            is_enum = isinstance(found, type) and issubclass(found, StrEnum)
            if is_enum and found.__module__ == module.name:
                yield found


def is_enum_class(node: ast.AST) -> bool:
    """Whether a statement defines an enum."""
    return isinstance(node, ast.ClassDef) and any(
        ast.unparse(base).endswith("Enum") for base in node.bases
    )


def literals(tree: ast.Module) -> Iterator[str]:
    """Yield the strings of a module that are no documentation, and not those that define an enum."""
    passed = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            passed.add(node.value)
        if isinstance(node, ast.ClassDef) and any(
            "Enum" in ast.unparse(base) for base in node.bases
        ):
            passed |= {line.value for line in node.body if isinstance(line, ast.Assign)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in passed:
            yield node.value


@pytest.fixture(scope="module")
def places() -> dict[str, set[str]]:
    """Where a text stands that is the value of an enum, by the text; exceptions left out."""
    values = {one.value for enum in enums() for one in enum if _DISTINCTIVE.fullmatch(one.value)}
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        passed = {
            text
            for place, texts in EXCEPTIONS.items()
            if name.startswith(place)
            for text in (values if texts is None else texts)
        }
        for text in literals(ast.parse(path.read_text(encoding="utf-8"))):
            if text in values - passed:
                found[text].add(name)
    return found


def test_no_kind_is_spelled_out_beside_its_enum(places: dict[str, set[str]]):
    """A second spelling is one that no type checker sees, and that is forgotten when a kind changes."""
    assert places == {}


def test_each_kind_is_defined_once():
    """Where two enums have a value in common, one of them takes it from the other."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not is_enum_class(node):
                continue
            for line in node.body:
                value = line.value if isinstance(line, ast.Assign) else None
                if isinstance(value, ast.Constant) and _DISTINCTIVE.fullmatch(str(value.value)):
                    found[value.value].add(node.name)
    assert {text: names for text, names in found.items() if len(names) > 1} == {}


def test_exceptions_are_needed():
    """One that nothing needs any more would hide the next mistake."""
    for place, texts in EXCEPTIONS.items():
        for text in texts or ():
            tree = ast.parse((PACKAGE / place).read_text(encoding="utf-8"))
            assert text in set(literals(tree)), (place, text)
