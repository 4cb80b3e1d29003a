"""
What docs/collector.md asks Tempo, and what it says that Tempo found.

    OTEL_GPU_TEST_TEMPO=… python -m tests.backends.tempo_page             # say which figures are old
    OTEL_GPU_TEST_TEMPO=… python -m tests.backends.tempo_page --update    # write those of the answers

As in ``tests.investigating``: figures are rewritten and nothing else.
"""

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.backends.processes import wait_for
from tests.backends.tempo import Range, Tempo, TempoSpan
from tests.investigating import Example, examples, refresh
from tests.kernel.agent import environment_for
from tests.receiver import OtlpReceiver, ReceivedSpan
from tests.unit.importers.traces import call, host, kernel, step, trace, write

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "collector.md"
SECTION = "## Asking Tempo"
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
LATE = (4, 7)

_NS_PER_SECOND = 1_000_000_000

_BLOCK = re.compile(r"^```(?P<kind>yaml|sh)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_SETTING = re.compile(r"[A-Z_]+=")
_METRIC = re.compile(r"\| \w+_over_time\(")


class Filled(NamedTuple):
    """
    What the commands of one block of the page send.

    Attributes:
        sent: All spans of it.
        within: The whole seconds of Unix time in which they are.
    """

    sent: Sequence[ReceivedSpan]
    within: Range


class Asked(NamedTuple):
    """A query of the page, and the block of commands that it is about."""

    example: Example
    filling: str


def section() -> str:
    """Return the page's section about Tempo."""
    _, heading, after = PAGE.read_text(encoding="utf-8").partition(f"\n{SECTION}\n")
    assert heading, SECTION
    return SECTION + "\n" + after.partition("\n## ")[0]


def settings() -> dict[str, Any]:
    """Return what the page says that Tempo is to be set to."""
    (text,) = (block["text"] for block in _BLOCK.finditer(section()) if block["kind"] == "yaml")
    return dict(yaml.safe_load(text))


def asked(text: str) -> list[Asked]:
    """Return the queries of a text, in their order."""
    found, filling = [], ""
    for example in examples(text):
        if example.kind == "sh":
            filling = example.text
        elif example.kind == "traceql":
            found.append(Asked(example, filling))
    return found


def prepare(folder: Path) -> Path:
    """Put the recordings, and the trace of a run, where the page has them."""
    (folder / "otel_gpu").symlink_to(ROOT / "otel_gpu")
    write(folder / "run.json", trace(late_data()))
    return folder


def late_data() -> Iterator[dict[str, Any]]:
    """What a profiler recorded of eight steps of 6 ms; for the fourth and the seventh, data is 4 ms late."""
    at = 0
    for number in range(1, 9):
        late = 4_000 if number in LATE else 0
        ready = at + 1_000 + late
        yield step(number, at, 6_000 + late)
        yield host(LOADER, at, 1_000 + late, "user_annotation")
        yield host("aten::mm", ready, 100)
        yield call("cudaLaunchKernel", ready + 20, 60, 10 * number)
        yield kernel(ready + 100, 4_000, 10 * number, "ampere_sgemm_128x64_tn")
        yield call("cudaMemcpyAsync", ready + 150, 50, 10 * number + 1)
        yield kernel(ready + 4_100, 500, 10 * number + 1, "Memcpy DtoH (Device -> Pinned)")
        yield call("cudaStreamSynchronize", ready + 300, 4_500)
        at += 6_000 + late


def send(filling: str, endpoint: str, folder: Path) -> None:
    """Run a block of commands, which send to Tempo, in a folder that has what they name."""
    for line in filling.splitlines():
        words = shlex.split(line)
        own = dict(word.split("=", 1) for word in takewhile(_SETTING.match, words))
        program, *arguments = words[len(own) :]
        if program != "otel-gpu":
            continue
        subprocess.run(
            [sys.executable, "-m", "otel_gpu", *arguments],
            cwd=folder,
            env=environment_for(None)
            | {
                "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
                "OTEL_METRICS_EXPORTER": "none",
                "PYTHONPATH": str(ROOT),
            }
            | own,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )


def fill(tempo: Tempo, filling: str, folder: Path) -> Filled:
    """Send what a block of the page sends, and wait until Tempo finds all of it."""
    with OtlpReceiver() as receiver:
        send(filling, receiver.grpc_endpoint, folder)
        sent = receiver.spans()
    start_ns = min(one.span.start_time_unix_nano for one in sent)
    end_ns = max(one.span.end_time_unix_nano for one in sent)
    within = start_ns // _NS_PER_SECOND, end_ns // _NS_PER_SECOND + 1
    send(filling, tempo.endpoint, folder)
    assert wait_for(lambda: len(tempo.search("{ }", within)) >= len(sent))
    return Filled(sent, within)


def answer_of(tempo: Tempo, query: str, within: Range) -> str:
    """Ask Tempo, and return what it found, a span or a value a line."""
    if _METRIC.search(query):
        values = tempo.values(query, within)
        return "".join(f"{value:.4g}  {', '.join(by)}\n" for by, value in sorted(values.items()))
    return "".join(map(_line, tempo.search(query, within)))


def _line(span: TempoSpan) -> str:
    said = [f"{name}={_shown(value)}" for name, value in sorted(span.attributes.items())]
    return "  ".join(filter(None, [f"{span.duration_ns / 1e6:.4g} ms", span.name, *said])) + "\n"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Refresh the page, or say what is stale."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--update", action="store_true", help="write the figures of the answers")
    update = parser.parse_args(arguments).update
    page, stale = PAGE.read_text(encoding="utf-8"), 0
    with tempfile.TemporaryDirectory() as name, Tempo(settings()) as tempo:
        folder = prepare(Path(name))
        queries = asked(section())
        filled = {text: fill(tempo, text, folder) for text in {one.filling for one in queries}}
        for example, filling in queries:
            answered = answer_of(tempo, example.text, filled[filling].within)
            fresh = refresh(example.promised, answered)
            if fresh.promised == example.promised and not fresh.missing:
                continue
            stale += 1
            print(f"{example.heading}:\n{answered}")  # noqa: T201 -- a script
            page = page.replace(example.promised, fresh.promised)
    if update:
        PAGE.write_text(page, encoding="utf-8")
    return 1 if stale and not update else 0


if __name__ == "__main__":
    sys.exit(main())
