"""
Runs ``benchmarks.on_gpu`` on a machine with a GPU and without a registry: ``make on-gpu``.

It needs a checkout, Python 3.11 or newer, a C compiler, and the folder that ``--kit`` makes on a machine
with a registry (``make on-gpu-kit``): the wheels of this agent and of its dependencies, and the compiled
programs of the benchmarks. It installs only into an environment in the checkout. A development
installation of this agent needs no kit. Other arguments are passed on.
"""

import os
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KIT = ROOT / "on-gpu-kit"
ENVIRONMENT = ROOT / ".output" / "on-gpu-venv"
PROGRAMS = Path(".output", "benchmarks", "programs.bpf.o")
# Files that are in a wheel but not in a checkout.
BUILT = ("otel_gpu/_bpf/", "otel_gpu/_preload/", "otel_gpu/_lib/")
# Packages that tests and benchmarks need besides the wheel.
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "pyelftools")
PYTHON = os.environ.get("ON_GPU_PYTHON", "3.12")
PLATFORMS = (
    *("manylinux_2_34", "manylinux_2_31", "manylinux_2_28", "manylinux_2_27", "manylinux_2_17"),
    *("manylinux2014", "manylinux2010", "manylinux1"),
)


def main() -> int:
    """Make the kit, or run with it."""
    if sys.argv[1:] == ["--kit"]:
        make_kit()
        return 0
    python = sys.executable
    if KIT.exists() and sys.prefix != str(ROOT / ".venv"):
        python = unpack_kit()
    command = [python, "-m", "benchmarks.on_gpu", *sys.argv[1:]]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def make_kit() -> None:
    """Fill the folder, for CPython of the version in ``ON_GPU_PYTHON`` on x86-64."""
    from benchmarks.programs import object_file  # noqa: PLC0415 -- is there for developers

    shutil.rmtree(KIT, ignore_errors=True)
    pip = [sys.executable, "-m", "pip"]
    build = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(KIT), "."]
    subprocess.run(build, cwd=ROOT, check=True)
    wheels = map(str, KIT.glob("otel_gpu-*.whl"))
    platforms = [word for one in PLATFORMS for word in ("--platform", f"{one}_x86_64")]
    download = [*pip, "download", "-q", "--only-binary=:all:", "--python-version", PYTHON]
    subprocess.run([*download, *platforms, "-d", str(KIT), *wheels, *TOOLS], check=True)
    shutil.copy(object_file(), KIT)
    files = [path.stat().st_size for path in KIT.iterdir()]
    print(f"{KIT}: {len(files)} files, {sum(files) / 1e6:.1f} MB")


def unpack_kit() -> str:
    """Install the wheels into an environment and copy built files into the checkout; return its Python."""
    # The agent ignores PYTHONPATH.
    venv.create(ENVIRONMENT, clear=True, with_pip=False, symlinks=True)
    python = str(ENVIRONMENT / "bin" / "python")
    (own,) = ENVIRONMENT.glob("lib/python*/site-packages")
    (own / "parent.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    wheels = sorted(map(str, KIT.glob("*.whl")))
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    options = ["--no-compile", "--upgrade", "--root-user-action", "ignore"]
    subprocess.run([*install, *options, "--target", own, *wheels], check=True)
    # So that the checkout's own modules run.
    shutil.rmtree(own / "otel_gpu")
    (wheel_of_ours,) = KIT.glob("otel_gpu-*.whl")
    with zipfile.ZipFile(wheel_of_ours) as wheel:
        for name in wheel.namelist():
            if name.startswith(BUILT) and not (ROOT / name).exists():
                wheel.extract(name, ROOT)
    (ROOT / PROGRAMS).parent.mkdir(parents=True, exist_ok=True)
    # Newer than its source, so that it is not compiled.
    shutil.copyfile(KIT / PROGRAMS.name, ROOT / PROGRAMS)
    return python


if __name__ == "__main__":
    sys.exit(main())
