"""The architecture as a test: who may import whom."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

import otel_gpu
from otel_gpu.commands import VERBS

PACKAGE = Path(otel_gpu.__file__).parent
# Stacks are made before capture puts them into its stream, of what /proc says of a process.
CORRIDOR = ["procfs", "stacks", "capture", "decode", "enrich", "ledger", "explain"]
# What each room may import.
ROOMS = {room: CORRIDOR[:index] for index, room in enumerate(CORRIDOR)}
ROOMS |= {"export": CORRIDOR, "findings": CORRIDOR, "store": CORRIDOR}
# What it yields enters the corridor where decoded records do.
ROOMS |= {"importers": ["procfs", "stacks", "capture", "decode"]}
# It runs inside an application, and writes OTLP as the exporter does.
ROOMS |= {"instrumentation": ["procfs", "export"]}
# They write what is in the document, and read nothing else.
ROOMS |= {"faces": ["findings"]}
# Scenarios and unit files know no data at all.
ROOMS |= {"demo": [], "service": []}
# An assistant may ask a store in SQL, which no document can hold.
SPECIAL = {"faces/mcp/captures.py": {"store"}, "faces/mcp/tools/sql.py": {"store"}}
# Verbs join what they need; nothing but the command line knows verbs.
COMMANDS = "commands"
ALONE = {
    "c_struct.py",
    "wire.py",
    "probe_table.py",
    "native_library.py",
    "records.py",
    "recent.py",
    "caches.py",
    "lean_imports.py",
    "shares.py",
    "errors.py",
    "safe_files.py",
    "printable.py",
    "faults.py",
    "options.py",
    "config.py",
    "checks.py",
    "reachability.py",
    "units.py",
}


def room_of(path):
    return path.relative_to(PACKAGE).parts[0]


@functools.cache
def imported_modules(source):
    """Names of the modules of this package that a source imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def imported_parts(source):
    """Rooms and top-level modules of this package that a source imports."""
    return {name.split(".")[1] for name in imported_modules(source) if name.startswith("otel_gpu.")}


def sources(*, rooms):
    files = sorted(PACKAGE.rglob("*.py"))
    assert files
    return [path for path in files if (room_of(path) in ROOMS) == rooms]


def is_verb(name):
    return name.rstrip("_") in VERBS


def name_of(path):
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", sources(rooms=True), ids=name_of)
def test_rooms_import_only_rooms_before_them(path):
    """An event walks the rooms once, so no room knows the ones after it."""
    here = room_of(path)
    allowed = {here, *ROOMS[here], *SPECIAL.get(name_of(path), ())}

    assert imported_parts(path.read_text()) & set(ROOMS) <= allowed


@pytest.mark.parametrize("path", sources(rooms=True), ids=name_of)
def test_rooms_import_nothing_that_sees_several_rooms(path):
    """What joins the rooms stands above them; a room that reached up would close a circle."""
    above = imported_parts(path.read_text()) & {
        "cli", "commands", "doctor", "health", "pipeline", "visibility"
    }  # fmt: skip

    assert above == set()


@pytest.mark.parametrize(
    "path", [p for p in sources(rooms=False) if room_of(p) != "cli.py"], ids=name_of
)
def test_nothing_but_the_command_line_knows_verbs(path):
    """A verb asks others, and is asked by nobody: what two verbs share is a module beside them."""
    here = room_of(path)
    verbs = {
        name
        for name in imported_modules(path.read_text())
        if name.startswith("otel_gpu.commands.") and is_verb(name.split(".")[2])
    }

    assert verbs == set()
    assert "cli" not in imported_parts(path.read_text()) or here == "__main__.py"
    assert here == COMMANDS or COMMANDS not in imported_parts(path.read_text())


@pytest.mark.parametrize("name", sorted(ALONE))
def test_foundations_import_no_room(name):
    """Errors, options and the wire are below every room."""
    assert imported_parts((PACKAGE / name).read_text()) & set(ROOMS) == set()


@pytest.mark.parametrize(
    "path",
    [p for p in sources(rooms=False) + sources(rooms=True) if p.name != "cli.py"],
    ids=name_of,
)
def test_only_the_command_line_prints(path):
    """Printing anywhere else would end up in the observed command's output."""
    calls = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]

    assert calls == []


def test_the_test_sees_every_way_to_import():
    """A planted violation of each form is found."""
    forms = [
        "import otel_gpu.export.otlp",
        "from otel_gpu.export import otlp",
        "from otel_gpu import export",
        "def late():\n    from otel_gpu.export.otlp import send",
    ]

    assert [imported_parts(source) >= {"export"} for source in forms] == [True] * 4


@pytest.mark.parametrize(
    ("verb", "unwanted"),
    [
        ("run", {"rich", "jinja2", "sqlite3", "otel_gpu.faces", "otel_gpu.findings"}),
        ("explain", {"rich", "otel_gpu.faces", "otel_gpu.capture.session", "google.protobuf"}),
        ("stacks", {"jinja2", "google.protobuf", "otel_gpu.capture.session"}),
        (
            "import_",
            {"jinja2", "rich", "sqlite3", "google.protobuf", "otel_gpu.export", "otel_gpu.faces"},
        ),
    ],
)
def test_a_verb_loads_only_what_it_needs(verb, unwanted):
    """
    What an agent that shows nothing never uses would be megabytes of it on every node; what is not
    needed for a recording would be half of the time that a short one takes.
    """
    script = f"import sys, otel_gpu.commands.{verb}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    loaded = done.stdout.split()
    assert "otel_gpu.pipeline" in loaded
    assert unwanted & set(loaded) == set()
