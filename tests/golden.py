"""
Writes the output of all verbs for each recording and example into files, for comparison.

    python -m tests.golden FOLDER                        # as this checkout does
    python -m tests.golden FOLDER --program PROGRAM      # as another one does
    python -m tests.golden FOLDER --base REVISION        # both, and how they differ

The program is only run, never imported, so outputs of commits before and after a rename can be compared.
A refactoring must not change them without saying so.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WIDTH = "100"
TIMEOUT_S = 300

_HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "golden", "version": "1"},
}
_VIEWS = "SELECT name FROM sqlite_master WHERE type = 'view' ORDER BY name"
_FEW_ROWS = 20


class Artefact(NamedTuple):
    """
    A file of a user, and the verb that reads it.

    Attributes:
        kind: ``recording``, or a kind that ``otel-gpu import`` reads.
    """

    name: str
    path: Path
    kind: str


def artefacts() -> Iterator[Artefact]:
    """The recordings of the demo and of the tests, and the examples."""
    recordings = [
        *sorted((ROOT / "otel_gpu" / "demo" / "recordings").glob("*.otelgpu")),
        *sorted((ROOT / "tests" / "scenarios" / "recordings").glob("*.otelgpu")),
        *sorted((ROOT / "tests" / "replay").glob("*.otelgpu")),
        *sorted((ROOT / "tests" / "corpus" / "recordings").glob("*.otelgpu")),
        ROOT / "examples" / "demo.otelgpu",
    ]
    for path in recordings:
        yield Artefact(f"{path.parent.name}-{path.stem}", path, "recording")
    examples = ROOT / "examples"
    for path in sorted(examples.glob("*.trace.json")):
        yield Artefact(path.name, path, "torch-trace")
    for path in sorted(examples.glob("*.pickle")):
        yield Artefact(path.name, path, "torch-memory")
    yield Artefact("hang", examples / "hang", "nccl-flight-recorder")


def write(program: Path, artefact: Artefact, folder: Path) -> None:
    """
    Write all outputs of one artefact below a folder; what fails is an output, too.

    Args:
        program: The ``otel-gpu`` to run.
        artefact: What it is to read.
        folder: Where; is made.
    """
    folder.mkdir(parents=True)
    path = str(artefact.path)
    with tempfile.TemporaryDirectory() as scratch:
        store = Path(scratch) / "store.db"
        otlp = str(folder / "otlp.jsonl")
        if artefact.kind == "recording":
            commands = {
                "parse.txt": ["parse", path],
                "explain.txt": ["explain", path],
                "explain.json": ["explain", path, "--json"],
                "stacks.txt": ["stacks", path, "--folded"],
                "replay.txt": ["replay", path, "--otlp-file", otlp, "--store", str(store)],
            }
        else:
            read = ["import", artefact.kind, path]
            commands = {
                "explain.txt": read,
                "explain.json": [*read, "--json"],
                "import.txt": [*read, "--otlp-file", otlp, "--store", str(store)],
            }
        commands["page.html"] = ["report", path]
        for name, arguments in commands.items():
            (folder / name).write_bytes(_run(program, arguments, Path(scratch)))
        served = store if store.exists() else artefact.path
        answers = _served(program, served, Path(scratch))
        (folder / "mcp.json").write_text(json.dumps(answers, indent=1), encoding="utf-8")


def _run(program: Path, arguments: Sequence[str], scratch: Path) -> bytes:
    ran = subprocess.run(
        [program, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=_environment(scratch),
        timeout=TIMEOUT_S,
        check=False,
    )
    failed = f"\nexit {ran.returncode}\n".encode() if ran.returncode else b""
    return (ran.stdout + ran.stderr + failed).replace(bytes(scratch), b"SCRATCH")


def _environment(scratch: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    kept |= {"COLUMNS": WIDTH, "NO_COLOR": "1", "TZ": "UTC", "XDG_STATE_HOME": str(scratch)}
    return kept | {"OTEL_SDK_DISABLED": "false"}


class _Client:
    """Speaks the Model Context Protocol on the standard streams of one process."""

    def __init__(self, server: "subprocess.Popen[str]") -> None:
        self._server = server
        self._asked = 0

    def ask(self, method: str, params: object) -> Any:
        self._asked += 1
        self._send({"id": self._asked, "method": method, "params": params})
        assert self._server.stdout is not None
        for line in self._server.stdout:
            answer = json.loads(line)
            if answer.get("id") == self._asked:
                return answer.get("result", answer.get("error"))
        return "the server ended"

    def tell(self, method: str) -> None:
        self._send({"method": method})

    def call(self, tool: str, **arguments: object) -> Any:
        result = self.ask("tools/call", {"name": tool, "arguments": arguments})
        try:
            return json.loads(result["content"][0]["text"])
        except (KeyError, TypeError, ValueError):
            return result

    def _send(self, message: dict[str, object]) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
        self._server.stdin.flush()


def _served(program: Path, path: Path, scratch: Path) -> dict[str, Any]:
    """What each tool answers without arguments, and the first rows of each view of a store."""
    server = subprocess.Popen(
        [program, "mcp", path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_environment(scratch),
        text=True,
    )
    with server:
        client = _Client(server)
        client.ask("initialize", _HELLO)
        client.tell("notifications/initialized")
        tools = [tool["name"] for tool in client.ask("tools/list", {})["tools"]]
        answers = {tool: client.call(tool) for tool in tools if tool != "run_sql"}
        if "run_sql" in tools:
            views = client.call("run_sql", sql=_VIEWS).get("rows", [])
            for (view,) in views:
                query = f"SELECT * FROM {view} LIMIT {_FEW_ROWS}"
                answers[query] = client.call("run_sql", sql=query)
        server.terminate()
    text = json.dumps(answers).replace(str(scratch), "SCRATCH")
    return dict(json.loads(text))


def write_all(program: Path, folder: Path, only: str) -> None:
    """Write the outputs of all artefacts whose name has these characters in it."""
    chosen = [one for one in artefacts() if only in one.name]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(write, program, one, folder / one.name) for one in chosen]
        for job in jobs:
            job.result()


def write_base(revision: str, folder: Path, only: str) -> None:
    """Write what the program of another commit prints of the artefacts of this one."""
    with tempfile.TemporaryDirectory() as scratch:
        checkout = Path(scratch) / "base"
        git = partial(subprocess.run, cwd=ROOT, check=True)
        git(["git", "worktree", "add", "--detach", "--quiet", checkout, revision])
        try:
            program = Path(scratch) / "otel-gpu"
            code = f"import sys; sys.path.insert(0, {str(checkout)!r})\n"
            code += "from otel_gpu.cli import main\nsys.exit(main())\n"
            program.write_text(f"#!{sys.executable}\n{code}", encoding="utf-8")
            program.chmod(0o755)
            write_all(program, folder, only)
        finally:
            git(["git", "worktree", "remove", "--force", checkout])


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the outputs; with a base, exit with 1 where they differ."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden", description=__doc__.strip().splitlines()[0]
    )
    parser.add_argument("folder", type=Path, help="where the outputs go; is made")
    parser.add_argument("--program", type=Path, default=Path(sys.executable).parent / "otel-gpu")
    parser.add_argument("--base", metavar="REVISION", help="compare with what this commit prints")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="artefacts with this in the name"
    )
    args = parser.parse_args(arguments)
    if not args.base:
        write_all(args.program, args.folder, args.only)
        return 0
    write_base(args.base, args.folder / "base", args.only)
    write_all(args.program, args.folder / "now", args.only)
    return subprocess.run(
        ["diff", "-r", "-u", "base", "now"], cwd=args.folder, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
