"""
The examples of docs/investigating.md: what is asked, and what the page promises of the answer.

    python -m tests.investigating             # say which figures are no longer those of the answers
    python -m tests.investigating --update    # write those of the answers

The recordings that the page asks about are made anew now and then, and each time every
duration, count and id in them changes. What an answer looks like does not: a promised part is
found by its shape, which is its text with any figure in the place of a figure. Figures are
rewritten and nothing else. A part whose shape is in no answer any more is for a person to
mend; it is left alone, and the exit code is 1. Read the difference before committing it: an
answer with new figures may no longer answer its question.
"""

import argparse
import contextlib
import functools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from otel_gpu.mcp.server import answer
from tests.unit.mcp import served

PAGE = served.ROOT / "docs" / "investigating.md"
LEFT_OUT = "..."

_TIMEOUT_S = 60.0

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_CAPTURE = re.compile(r"\S+\.(?:otelgpu|db|json)\b")
# An id of a span or a trace, a number with its unit if it has one, or a bar of a chart.
_FIGURE = re.compile(
    r'(?<=")[0-9a-f]{16}(?:[0-9a-f]{16})?(?=")'
    r"|(?<![\w.])<?[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?: ?(?:[nµm]?s|[kMGT]?B|%)(?!\w))?"
    r"|#+"
)
# A process, or a moment: what a question can name that an answer named before it.
_NAMED = re.compile(r"\d{4,}")


class Example(NamedTuple):
    """
    A question of the page.

    Attributes:
        heading: What it is below.
        kind: ``sh``: a command; ``mcp``: a capture, with its baseline if it has one, a tool and its
            arguments.
        text: What is asked.
        promised: What the page shows of the answer; empty for what only prepares others.
        begin: Where ``text`` begins in the page.
        promise_begin: Where ``promised`` begins in it.
    """

    heading: str
    kind: str
    text: str
    promised: str
    begin: int
    promise_begin: int

    @property
    def capture(self) -> str:
        """The file that is asked about; empty where none is named."""
        found = _CAPTURE.search(self.text)
        return found[0] if found else ""


class Refreshed(NamedTuple):
    """
    A promise with the figures of an answer.

    Attributes:
        promised: The promise.
        figures: What each figure of the parts that are changed was, and is.
        missing: Of each part that is in the answer no longer, the first line that is not.
    """

    promised: str
    figures: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]


class _Placed(NamedTuple):
    """Where the parts of a promise are in an answer; None: nowhere."""

    lost: int
    changed: int
    places: tuple[re.Match[str] | None, ...]


def examples(page: str) -> Iterator[Example]:
    """Yield what a page asks, in order; the first prepares the others."""
    blocks = [*_BLOCK.finditer(page), None]
    for block, following in pairwise(blocks):
        assert block is not None
        if block[1] == "text":
            continue
        promise = following if following is not None and following[1] == "text" else None
        *_, heading = _HEADING.findall(page, 0, block.start())
        yield Example(
            heading,
            block[1],
            block[2].rstrip("\n"),
            promise[2] if promise else "",
            block.start(2),
            promise.start(2) if promise else 0,
        )


def prepare(folder: Path, preparing: Example) -> None:
    """Put the recordings where the page says, and make its stores."""
    for name in ("otel_gpu", "examples", "tests"):
        (folder / name).symlink_to(served.ROOT / name)
    for line in preparing.text.splitlines():
        _run(line, folder)


def answer_of(example: Example, folder: Path) -> str:
    """Ask in a folder that is prepared."""
    if example.kind == "sh":
        return _run(example.text, folder)
    with contextlib.chdir(folder):
        paths, arguments = example.text.split(" {", 1)
        path, *baseline, tool = paths.replace(" --baseline", "").split()
        capture = served.capture_of(Path(path), baseline=Path(*baseline) if baseline else None)
        text, is_error = answer(capture, tool, json.loads("{" + arguments))
        assert not is_error, text
        # A space after each comma, as the page has it.
        return json.dumps(json.loads(text), ensure_ascii=False)


def _run(line: str, folder: Path) -> str:
    program, *arguments = shlex.split(line)
    assert program == "otel-gpu", line
    result = subprocess.run(
        [sys.executable, "-m", "otel_gpu", *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "160"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 0, f"{line}: {result.stderr}"
    return result.stdout


def missing(promised: str, answered: str) -> str:
    """
    Return the first line that is promised and is not in the answer; empty: all of them are.

    Parts are in the order of the page, and what ``...`` does not part is not parted in the
    answer. White space between words is of no account, so that a page can be folded.
    """
    position = 0
    for part in _parts_of(promised):
        found = _pattern_of(part, exact=True).search(answered, position)
        if found is None:
            return _first_missing(part, answered, position, exact=True)
        position = found.end()
    return ""


def refresh(promised: str, answered: str) -> Refreshed:
    """
    Return a promise with the figures of the answer.

    Of all ways to find the parts in their order, the one with fewest parts not found is
    taken, then the one with fewest parts changed, then the earliest.
    """
    parts = _parts_of(promised)

    @functools.cache
    def place(number: int, position: int) -> _Placed:
        if number == len(parts):
            return _Placed(0, 0, ())
        rest = place(number + 1, position)
        best = _Placed(rest.lost + 1, rest.changed, (None, *rest.places))
        for exact in (True, False):
            found = _pattern_of(parts[number], exact=exact).search(answered, position)
            if found is not None:
                rest = place(number + 1, found.end())
                way = _Placed(rest.lost, rest.changed + (not exact), (found, *rest.places))
                best = min(best, way, key=lambda one: one[:2])
        return best

    fresh: list[str] = []
    figures: list[tuple[str, str]] = []
    lost: list[str] = []
    places = iter(place(0, 0).places)
    position = 0
    for run in _runs_of(promised):
        if run.rstrip("\n") == LEFT_OUT:
            fresh.append(run)
        elif (found := next(places)) is None:
            lost.append(_first_missing(run, answered, position, exact=False))
            fresh.append(run)
        else:
            position = found.end()
            # What is in its place exactly has no groups.
            pairs = list(zip(_FIGURE.findall(run), found.groups(), strict=False))
            figures += pairs
            new = iter(pairs)
            fresh.append(_FIGURE.sub(lambda old: next(new)[1], run) if pairs else run)  # noqa: B023
    return Refreshed("".join(fresh), tuple(figures), tuple(lost))


def _runs_of(promised: str) -> Iterator[str]:
    run = ""
    for line in promised.splitlines(keepends=True):
        if line.rstrip("\n") != LEFT_OUT:
            run += line
            continue
        if run:
            yield run
        yield line
        run = ""
    if run:
        yield run


def _parts_of(promised: str) -> Sequence[str]:
    return [run for run in _runs_of(promised) if run.rstrip("\n") != LEFT_OUT]


def _pattern_of(part: str, *, exact: bool) -> re.Pattern[str]:
    text = part.strip()
    pieces, position = [], 0
    for figure in () if exact else _FIGURE.finditer(text):
        pieces += [_spaced(text, position, figure.start()), f"({_FIGURE.pattern})"]
        position = figure.end()
    pieces.append(_spaced(text, position, len(text)))
    # Neither a word nor a number is found in a longer one.
    before = r"(?<![\w.])" if text[:1].isalnum() else ""
    after = r"(?!\w|\.\d)" if text[-1:].isalnum() else ""
    return re.compile(before + "".join(pieces) + after)


def _spaced(text: str, begin: int, end: int) -> str:
    """Return a pattern for what lies between two figures."""
    found = ""
    for word in re.finditer(r"\s+|\S+", text[begin:end]):
        if not word[0].isspace():
            found += re.escape(word[0])
            continue
        sides = text[begin + word.start() - 1], text[begin + word.end()]
        found += r"\s+" if all(map(str.isalnum, sides)) else r"\s*"
    return found


def _first_missing(part: str, answered: str, position: int, *, exact: bool) -> str:
    lines = part.splitlines()
    for number in range(len(lines)):
        head = "\n".join(lines[: number + 1])
        if not _pattern_of(head, exact=exact).search(answered, position):
            return lines[number].strip()
    return lines[0].strip()


def refresh_page(page: str, folder: Path) -> tuple[str, list[str]]:
    """
    Return a page with the figures of its answers, and a message for each line that is lost.

    Where an answer named a process or a moment anew, later questions about the same capture
    name it so, too.
    """
    named: dict[str, dict[str, str]] = {}
    changes: list[tuple[int, str, str]] = []
    messages = []
    preparing, *asked = examples(page)
    prepare(folder, preparing)
    for example in asked:
        names = named.setdefault(example.capture, {})
        question = _rename(example.text, names)
        fresh = refresh(example.promised, answer_of(example._replace(text=question), folder))
        messages += [f"{example.heading}: not in the answer: {line}" for line in fresh.missing]
        for old, new in fresh.figures:
            if _NAMED.fullmatch(old):
                names.setdefault(old, new)
        changes.append((example.begin, example.text, question))
        changes.append((example.promise_begin, example.promised, fresh.promised))
    for begin, old, new in reversed(changes):
        page = page[:begin] + new + page[begin + len(old) :]
    return page, messages


def _rename(text: str, names: Mapping[str, str]) -> str:
    return re.sub(
        r"(?<![\w.])\d{4,}(?![\w.])", lambda figure: names.get(figure[0], figure[0]), text
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Refresh the page, or say what is stale."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--update", action="store_true", help="write the figures of the answers")
    update = parser.parse_args(arguments).update
    page = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        fresh, messages = refresh_page(page, Path(folder))
    lines = list(zip(page.splitlines(), fresh.splitlines(), strict=True))
    stale = [number for number, (old, new) in enumerate(lines, start=1) if old != new]
    for number in stale:
        what = "updated" if update else "stale"
        print(f"{what}: line {number}: {lines[number - 1][1].strip()}")  # noqa: T201 -- a script
    for message in messages:
        print(message)  # noqa: T201 -- as above
    if update and stale:
        PAGE.write_text(fresh, encoding="utf-8")
    return 1 if messages or (stale and not update) else 0


if __name__ == "__main__":
    sys.exit(main())
