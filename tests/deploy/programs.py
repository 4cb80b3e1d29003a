"""
kustomize, our validator and the programs of Debian packages, built or unpacked once.

As ``tests.backends.builds`` does it, whose cache they share: pinned by ``go.mod`` and
``go.sum``, kept outside the tree, under a name that changes when their sources do.
"""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

from tests.backends import builds

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "validate"
# The library that CRI-O and Podman take it from.
SECCOMP_MODULE = "github.com/containers/common@v0.64.2"
SECCOMP_SUM = "h1:1xepE7QwQggUXxmyQ1Dbh6Cn0yd7ktk14sN3McSWf5I="


def kustomize() -> Path:
    """Build kustomize where that is not done yet, and return the program."""

    def build(work: Path, target: Path) -> None:
        builds.compile_module("sigs.k8s.io/kustomize/kustomize/v5", _copy_sources(work), target)

    return builds.build_once(builds.cache() / f"kustomize-{_digest()}", build)


def validate() -> Path:
    """Build the validator of manifests where that is not done yet, and return the program."""

    def build(work: Path, target: Path) -> None:
        builds.compile_module(".", _copy_sources(work), target)

    return builds.build_once(builds.cache() / f"validate-{_digest()}", build)


def promtool() -> Path:
    """Get promtool where it is missing, and return the program."""
    return _of_package("prometheus", "usr/bin/promtool")


def runc() -> Path:
    """Get runc, which makes containers, where it is missing, and return the program."""
    return _of_package("runc", "usr/sbin/runc")


def seccomp_profile() -> Path:
    """Get CRI-O's default filter of system calls, and return the JSON file."""

    def take(work: Path, target: Path) -> None:
        command = [builds.require_go(), "mod", "download", "-json", SECCOMP_MODULE]
        done = subprocess.run(command, cwd=work, capture_output=True, check=True)
        module = json.loads(done.stdout)
        assert module["Sum"] == SECCOMP_SUM
        shutil.copy(Path(module["Dir"]) / "pkg" / "seccomp" / "seccomp.json", target)

    return builds.build_once(
        builds.cache() / f"seccomp-{SECCOMP_MODULE.rpartition('@')[2]}.json", take
    )


def _of_package(package: str, path: str) -> Path:
    if installed := shutil.which(Path(path).name, path="/usr/bin:/usr/sbin"):
        return Path(installed)

    def unpack(work: Path, target: Path) -> None:
        builds.unpack(package, path, work, target)

    return builds.build_once(builds.cache() / Path(path).name, unpack)


def _copy_sources(folder: Path) -> Path:
    for path in SOURCES.iterdir():
        shutil.copy(path, folder)
    return folder


def _digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
