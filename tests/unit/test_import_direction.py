"""The import rule: which package imports which."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

import otel_gpu
from otel_gpu.cli.commands import VERBS

PACKAGE = Path(otel_gpu.__file__).parent
# Stacks are made before capture puts them into its stream, of what /proc says of a process.
LAYERS = ["wire", "procfs", "stacks", "capture", "enrich", "state", "explain"]
# What each package may import of the others.
MAY_IMPORT = {package: LAYERS[:index] for index, package in enumerate(LAYERS)}
MAY_IMPORT |= {"export": LAYERS, "report": LAYERS, "recorder": LAYERS}
# What it yields is used where decoded records are.
MAY_IMPORT |= {"importers": ["wire", "procfs", "stacks", "capture"]}
# It runs inside an application, and writes OTLP as the exporter does.
MAY_IMPORT |= {"instrumentation": ["wire", "procfs", "export"]}
# They write what is in the document, and read nothing else. An assistant may ask a store in SQL,
# which no document can hold.
MAY_IMPORT |= {
    "report/render": ["wire", "report"],
    "mcp": ["wire", "report", "report/render", "recorder"],
}
# Scenarios take nothing from the agent.
MAY_IMPORT |= {"demo": []}
# Verbs join what they need; nothing but the command line knows verbs.
VERBS_FOLDER = "cli/commands"
COMMAND_LINE = ("cli", "__main__.py")
PRINTS = "cli/__init__.py"
# What joins packages.
ABOVE = {"cli", "pipeline.py"}
# Files and folders below every package.
ALONE = {
    "formatting",
    "files",
    "limits",
    "lean_imports.py",
    "errors.py",
    "faults.py",
    "options.py",
    "config.py",
}


def package_of(path):
    """Return the innermost package of the table that holds a path, else the first part of the path."""
    packages = [name for name in MAY_IMPORT if f"{path}/".startswith(f"{name}/")]
    return max(packages, key=len, default=path.parts[0])


def path_of(name):
    """Return the path of a module, or of a name in a module, below the package."""
    return Path(*name.split(".")[1:])


@functools.cache
def imported_modules(source):
    """Names of the modules of this package that a source imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name for name in names if name.startswith("otel_gpu.")}


def imported_packages(source):
    """Packages of the table that a source imports; of nested ones the innermost."""
    return {package_of(path_of(name)) for name in imported_modules(source)} & set(MAY_IMPORT)


def imports(source, places):
    """Whether a source imports one of some modules and folders, which are paths."""
    paths = {path_of(name).as_posix() for name in imported_modules(source)}
    wanted = [place.removesuffix(".py") for place in places]
    return any(path == place or path.startswith(f"{place}/") for path in paths for place in wanted)


def sources(*, layered):
    files = sorted(PACKAGE.rglob("*.py"))
    assert files
    return [
        path for path in files if (package_of(path.relative_to(PACKAGE)) in MAY_IMPORT) == layered
    ]


def is_verb(name):
    return name.rstrip("_") in VERBS


def name_of(path):
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", sources(layered=True), ids=name_of)
def test_packages_import_only_those_before_them(path):
    """Events pass the packages in one direction, so no package imports a later one."""
    here = package_of(path.relative_to(PACKAGE))

    assert imported_packages(path.read_text()) <= {here, *MAY_IMPORT[here]}


@pytest.mark.parametrize("path", sources(layered=True), ids=name_of)
def test_packages_import_nothing_that_joins_them(path):
    """What joins packages is above them; an import of it would close a circle."""
    assert not imports(path.read_text(), ABOVE)


@pytest.mark.parametrize("path", sources(layered=False), ids=name_of)
def test_nothing_but_the_command_line_knows_verbs(path):
    """A verb asks others, and is asked by nobody: what two verbs share is a module of its own."""
    name = name_of(path)
    verbs = VERBS_FOLDER.split("/")
    known = {
        module
        for module in imported_modules(path.read_text())
        if module.split(".")[1:-1] == verbs and is_verb(module.split(".")[-1])
    }

    assert known == set()
    assert name.startswith(COMMAND_LINE) or not imports(path.read_text(), COMMAND_LINE)


def foundations():
    places = [PACKAGE / name for name in sorted(ALONE)]
    assert all(place.exists() for place in places)
    return [path for place in places for path in (sorted(place.glob("*.py")) or [place])]


@pytest.mark.parametrize("path", foundations(), ids=name_of)
def test_foundations_import_only_the_wire(path):
    """Errors, options and bounds are below every package; the wire has constants of theirs."""
    assert imported_packages(path.read_text()) <= {"wire"}


@pytest.mark.parametrize(
    "path",
    [p for p in sorted(PACKAGE.rglob("*.py")) if name_of(p) != PRINTS],
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
        "import otel_gpu.export.otlp.exporters",
        "from otel_gpu.export.otlp import exporters as otlp",
        "from otel_gpu import export",
        "def late():\n    from otel_gpu.export.otlp.exporters import send",
    ]

    assert [imported_packages(source) for source in forms] == [{"export"}] * 4


@pytest.mark.parametrize(
    ("verb", "unwanted"),
    [
        ("run", {"rich", "jinja2", "sqlite3", "otel_gpu.report.render", "otel_gpu.report"}),
        (
            "explain",
            {"rich", "otel_gpu.report.render", "otel_gpu.capture.session", "google.protobuf"},
        ),
        ("stacks", {"jinja2", "google.protobuf", "otel_gpu.capture.session"}),
        (
            "import_",
            {
                "jinja2",
                "rich",
                "sqlite3",
                "google.protobuf",
                "otel_gpu.export",
                "otel_gpu.report.render",
            },
        ),
    ],
)
def test_a_verb_loads_only_what_it_needs(verb, unwanted):
    """
    What an agent that shows nothing never uses would be megabytes of it on every node; what is not
    needed for a recording would be half of the time that a short one takes.
    """
    script = f"import sys, otel_gpu.cli.commands.{verb}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    loaded = done.stdout.split()
    assert "otel_gpu.pipeline" in loaded
    assert unwanted & set(loaded) == set()
