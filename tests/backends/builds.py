"""
Jaeger, the Collector, Prometheus and ClickHouse: built or fetched once, from pinned sources.

Jaeger and the Collector are compiled from their published Go modules; ``go.mod`` and
``go.sum`` beside this file pin them. Prometheus is Debian's package, unpacked and not
installed, since installing it would start a server. ClickHouse is chdb, a wheel that is unpacked
beside them, as no other test needs it. They are kept outside the tree, under a name that changes
when their sources do, so no build happens twice.

    python -m tests.backends.builds     build what is missing, and say where it is

Its exit code is 2 where that cannot be done here, such as without Go.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
# In minutes of a small machine that does other things as well.
BUILD_TIMEOUT_S = 3600.0


class BuildError(Exception):
    """A program could not be made; the text says why."""


def missing() -> str | None:
    """What the tests lack to run here; None when all programs are built or can be."""
    paths = jaeger_path(), otelcol_path(), prometheus_path()
    if all(path.exists() for path in paths):
        return None
    if go() is None:
        return "Go, which builds Jaeger and the Collector, is not installed"
    if shutil.which("prometheus") is None and shutil.which("apt-get") is None:
        return "Prometheus is not installed, and there is no apt-get to get it with"
    return None


def go() -> str | None:
    """Where the Go command is: on PATH, or where its own installer puts it."""
    return shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")


def cache() -> Path:
    """The folder of the built programs: ``OTEL_GPU_TEST_CACHE``, or one in the user's cache."""
    named = os.environ.get("OTEL_GPU_TEST_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(base) / "otel-gpu-tests"


def jaeger_path() -> Path:
    """Where Jaeger is once it is built."""
    return cache() / f"jaeger-{_digest('jaeger')}"


def otelcol_path() -> Path:
    """Where the Collector is once it is built."""
    return cache() / f"otelcol-{_digest('collector')}"


def prometheus_path() -> Path:
    """Where Prometheus is: the installed one, or the unpacked one."""
    installed = shutil.which("prometheus")
    return Path(installed) if installed else cache() / "prometheus"


def chdb_path() -> Path:
    """Where ClickHouse is as a Python package, once it is fetched."""
    return cache() / f"chdb-{_digest('clickhouse')}"


def jaeger() -> Path:
    """Build Jaeger where that is not done yet, and return the program."""
    return build_once(jaeger_path(), _build_jaeger)


def otelcol() -> Path:
    """Build the Collector where that is not done yet, and return the program."""
    return build_once(otelcol_path(), _build_otelcol)


def prometheus() -> Path:
    """Get Prometheus where it is missing, and return the program."""
    return build_once(prometheus_path(), _unpack_prometheus)


def chdb() -> Path:
    """Fetch ClickHouse where it is missing, and return the folder to import it from."""
    return build_once(chdb_path(), _install_chdb)


def pprof() -> Path:
    """Build pprof of Go's own source where that is not done yet, and return the program."""
    return build_once(cache() / "pprof", _build_pprof)


def _build_pprof(work: Path, target: Path) -> None:
    _run([require_go(), "build", "-o", str(target), "cmd/pprof"], work)


def _build_jaeger(work: Path, target: Path) -> None:
    shutil.copy(HERE / "jaeger" / "go.mod", work)
    shutil.copy(HERE / "jaeger" / "go.sum", work)
    compile_module("github.com/jaegertracing/jaeger/cmd/jaeger", work, target)


def _build_otelcol(work: Path, target: Path) -> None:
    for name in ("go.mod", "go.sum", "builder.yaml"):
        shutil.copy(HERE / "collector" / name, work)
    # The builder writes the program's source. It would also look for the newest versions of
    # what that needs: ours are pinned, so it stops there.
    command = [require_go(), "tool", "builder", "--config=builder.yaml"]
    _run([*command, "--skip-get-modules", "--skip-compilation"], work)
    sources = work / "build"
    shutil.copy(work / "go.mod", sources)
    shutil.copy(work / "go.sum", sources)
    # Without clients of two dozen clouds, which discover targets there; Kubernetes's stays.
    compile_module(".", sources, target, "-tags=remove_all_sd")


def _unpack_prometheus(work: Path, target: Path) -> None:
    unpack("prometheus", "usr/bin/prometheus", work, target)


def _install_chdb(work: Path, target: Path) -> None:
    wanted = HERE / "clickhouse" / "requirements.txt"
    flags = ["--quiet", "--no-deps", "--only-binary=:all:", "--target", str(target)]
    _run([sys.executable, "-m", "pip", "install", *flags, "-r", str(wanted)], work)


def unpack(package: str, path: str, work: Path, target: Path) -> None:
    """Take one file out of a Debian package, which is not installed."""
    try:
        _run(["apt-get", "-q", "download", package], work)
    except BuildError:
        # A fresh machine has no package lists, an old one has lists of files that are gone.
        _run(["apt-get", "-q", "update"], work)
        _run(["apt-get", "-q", "download", package], work)
    (archive,) = work.glob(f"{package}_*.deb")
    _run(["dpkg-deb", "--extract", str(archive), "."], work)
    shutil.move(work / path, target)


def compile_module(package: str, folder: Path, target: Path, *more: str) -> None:
    """Compile a program of the Go module in a folder, as its go.mod pins it."""
    flags = ["-p", "2", "-trimpath", "-mod=readonly", "-ldflags=-s -w", *more]
    _run(["nice", "-n", "10", require_go(), "build", *flags, "-o", str(target), package], folder)


def require_go() -> str:
    """Return where the Go command is, or say that there is none."""
    found = go()
    if found is None:
        raise BuildError("Go is not installed")
    return found


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        # A workspace file above the folder would replace the versions that are pinned.
        env=os.environ | {"GOWORK": "off"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=BUILD_TIMEOUT_S,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BuildError(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}")


def build_once(path: Path, build: Callable[[Path, Path], None]) -> Path:
    """Return a file of the cache; build it, from a folder to work in, where it is missing."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two test runs at a time share one build.
    with _locked(path.with_suffix(".lock")):
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                made = Path(folder) / "made"
                build(Path(folder), made)
                made.rename(path)
    return path


@contextmanager
def _locked(path: Path):
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _digest(folder: str) -> str:
    digest = hashlib.sha256()
    for path in sorted((HERE / folder).iterdir()):
        if path.name in {"go.mod", "go.sum", "builder.yaml", "requirements.txt"}:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _main() -> int:
    if reason := missing():
        sys.stderr.write(f"backends: {reason}; their tests are skipped\n")
        return 2
    for name, build in (
        ("jaeger", jaeger),
        ("collector", otelcol),
        ("prometheus", prometheus),
        ("clickhouse", chdb),
    ):
        start_s = time.monotonic()
        sys.stderr.write(f"backends: {name} …\n")
        try:
            path = build()
        except BuildError as error:
            sys.stderr.write(f"backends: {error}\n")
            return 1
        took_s, size = time.monotonic() - start_s, _size_of(path)
        sys.stderr.write(f"backends: {path} ({size / 1e6:.0f} MB, {took_s:.0f} s)\n")
    return 0


def _size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())


if __name__ == "__main__":
    sys.exit(_main())
