"""Words that texts and names avoid: help, errors, docstrings, comments, identifiers; in C, too."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "otel_gpu"
# Phrases that a newcomer has to decode, or metaphors of this house.
AVOIDED = (
    *("of which", "of whom", "whoever", "whomever", "somebody", "nobody", "meanwhile"),
    *("again and again", "so many", "as far as", "likewise", "told", "tells", "says", "said"),
    *("feeder", "feeds", "rhythm", "stretch", "stretches", "stranger", "keeper", "ledger"),
    *("process image", "memory-bound", "is no list", "is no dictionary"),
)
# In docstrings and comments.
AVOIDED_INSIDE = (
    *AVOIDED,
    *("as such", "say", "tell", "whom", "room", "feeders", "rhythms", "spell", "spells"),
    *("strangers", "keepers", "crowd", "glossary", "surroundings", "leftovers", "withheld"),
    *("held back", "gives up", "given up", "lets go", "let go", "given back", "blame", "blames"),
    *("piece", "pieces", "is no", "are no", "that is no", "that are no", "door", "doors"),
)
# Parts of identifiers, between underscores. A slot stays: of an array in shared memory, it is the field's word.
AVOIDED_NAMES = frozenset(
    {
        *(
            "door",
            "doors",
            "rhythm",
            "rhythms",
            "ledger",
            "ledgers",
            "keeper",
            "keepers",
            "stranger",
        ),
        *(
            "crowd",
            "feeder",
            "feeders",
            "spell",
            "spells",
            "stretch",
            "stretches",
            "blame",
            "blames",
        ),
        *(
            "look",
            "looks",
            "tally",
            "truths",
            "tones",
            "inert",
            "sweep",
            "endings",
            "claims",
            "tails",
        ),
        *("referents", "arrivals", "introductions", "surroundings", "leftovers", "withheld"),
        *("image", "images", "piece", "pieces", "said", "told", "whom", "whose", "noun", "nouns"),
        *("room", "ways", "wishes"),
    }
)
# What other projects call so: a container's image, pictures, functions of CPython, slots of a class.
KNOWN_NAMES = frozenset({"__slots__", "slots", "elf_image", "IMAGE_DECODING"})
# Decisions keep the words of their time, and so do lists of changes and of measurements.
PAGES = sorted(
    page.relative_to(ROOT)
    for pattern in ("*.md", "docs/*.md", "docs/internals/*.md", "deploy/**/*.md", "examples/*.md")
    for page in ROOT.glob(pattern)
    if page.name not in ("CHANGELOG.md", "validation.md")
)
C_FOLDERS = ("bpf", "preload", "otel_gpu/demo")
# A comment, a string or a character, or an identifier.
_C_TOKEN = re.compile(
    r"(?P<comment>/\*.*?\*/|//[^\n]*)|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|(?P<name>[A-Za-z_]\w*)",
    re.DOTALL,
)
PACKAGES = sorted({"", *(path.parent.name for path in PACKAGE.glob("*/__init__.py"))})


def _pattern(words: Iterable[str]) -> re.Pattern[str]:
    # In code spans, and as parts of names, these words may stand.
    return re.compile(rf"(?<![\w`-])({'|'.join(map(re.escape, words))})(?![\w`-])", re.IGNORECASE)


_PATTERN = _pattern(AVOIDED)
_PATTERN_INSIDE = _pattern(AVOIDED_INSIDE)


def _found(texts: Iterator[tuple[str, str]], pattern: re.Pattern[str] = _PATTERN) -> list[str]:
    return [
        f"{where}: {match[0]}: {text[:100]}"
        for where, text in texts
        for match in [pattern.search(text)]
        if match
    ]


def _modules(package: str) -> Iterator[tuple[str, str]]:
    paths = (PACKAGE / package).rglob("*.py") if package else PACKAGE.glob("*.py")
    for path in sorted(paths):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def _tokens(text: str, kind: int) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == kind:
            yield token.start[0], token.string


def _inner_texts(package: str) -> Iterator[tuple[str, str]]:
    for path, text in _modules(package):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                yield f"{path}:{getattr(node, 'lineno', 1)}", ast.get_docstring(node) or ""
        for line, comment in _tokens(text, tokenize.COMMENT):
            yield f"{path}:{line}", comment


def _avoided_names(package: str) -> Iterator[str]:
    for path, text in _modules(package):
        for line, name in _tokens(text, tokenize.NAME):
            parts = AVOIDED_NAMES.intersection(name.lower().split("_"))
            if parts and name not in KNOWN_NAMES:
                yield f"{path}:{line}: {name}"


def _c_tokens(folder: str, kind: str) -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / folder).rglob("*.[ch]")):
        text = path.read_text(encoding="utf-8")
        for token in _C_TOKEN.finditer(text):
            if token[kind]:
                line = text.count("\n", 0, token.start()) + 1
                yield (
                    f"{path.relative_to(ROOT)}:{line}",
                    re.sub(r"\s*\n\s*\*?\s*", " ", token[kind]),
                )


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


def _prose(page: Path) -> Iterator[tuple[str, str]]:
    is_prose = True
    for at, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_prose = not is_prose
        elif is_prose:
            yield f"{page}:{at}", re.sub(r"`[^`]*`", "", line)


def _registry_texts() -> Iterator[tuple[str, str]]:
    registry = yaml.safe_load((PACKAGE / "export" / "semconv.yaml").read_text(encoding="utf-8"))
    for section, items in registry.items():
        if isinstance(items, dict):
            for name, item in items.items():
                if isinstance(item, dict):
                    yield f"{section}.{name}", f"{item.get('brief', '')} {item.get('note', '')}"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_pages_avoid_words_that_have_to_be_decoded(page):
    """Also those that come from code: help, options, columns and the support page."""
    assert _found(_prose(page)) == []


def test_descriptions_of_telemetry_avoid_these_words():
    """The briefs and notes that metrics carry to backends."""
    assert _found(_registry_texts()) == []


def test_errors_and_hints_avoid_these_words():
    """An error states what is wrong, and what to do."""
    assert _found(_error_texts()) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_and_comments_avoid_these_words(package):
    """What a reader of the code reads beside it."""
    assert _found(_inner_texts(package), _PATTERN_INSIDE) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_names_avoid_these_words(package):
    """Modules, classes, functions, attributes and variables."""
    assert list(_avoided_names(package)) == []


@pytest.mark.parametrize("folder", C_FOLDERS)
def test_comments_in_c_avoid_these_words(folder):
    """BPF programs, the preload library and the demo's stubs."""
    assert _found(_c_tokens(folder, "comment"), _PATTERN_INSIDE) == []


@pytest.mark.parametrize("folder", C_FOLDERS)
def test_names_in_c_avoid_these_words(folder):
    """Macros, types, functions, members and variables."""
    found = [
        f"{where}: {name}"
        for where, name in _c_tokens(folder, "name")
        if AVOIDED_NAMES.intersection(name.lower().split("_"))
    ]
    assert found == []
