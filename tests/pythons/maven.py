"""A build with a shared libpython, from a Maven artifact that packs CPython for Java."""

import hashlib
import platform
import shutil
import zipfile
from pathlib import Path

from tests.pythons.missing import Missing, run

# Version of Python -> version of the artifact.
_VERSIONS = {"3.12.1": "3.12.1-1.5.10"}
_CHECKSUMS = {
    ("3.12.1", "linux-x86_64"): "a135fcf4dc01adebf7ea439252276fc3196db80f7e0dd3da0b61f1ec489b68bd",
    ("3.12.1", "linux-arm64"): "4876e6a9eb45c4e2faf7c9f9ef8cb9f16a462c45c3440d4c2e15e6acc8f4e0df",
}
_MACHINES = {"x86_64": "linux-x86_64", "aarch64": "linux-arm64"}

_SCRIPT = """#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
# Its modules do not say where the libraries are that came with them.
export LD_LIBRARY_PATH="$here${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
PYTHONHOME=$here exec "$here"/bin/python{minor} "$@"
"""


def install(folder: Path, version: str) -> str:
    """
    Unpack one version; return the script that starts it.

    Raises:
        Missing: There is no Maven, or it cannot get the artifact.
    """
    if shutil.which("mvn") is None:
        raise Missing("there is no mvn, which gets the shared build")
    machine = _MACHINES.get(platform.machine(), platform.machine())
    checksum = _CHECKSUMS.get((version, machine))
    if checksum is None:
        raise Missing(f"the artifact has nothing for {machine}")
    artifact = f"org.bytedeco:cpython:{_VERSIONS[version]}:jar:{machine}"
    jars = folder / "jars"
    _copy(artifact, jars)
    jar = next(jars.glob("*.jar"))
    found = hashlib.sha256(jar.read_bytes()).hexdigest()
    if found != checksum:
        raise AssertionError(f"{artifact} has the SHA-256 {found}")
    inside = f"org/bytedeco/cpython/{machine}/"
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if name.startswith(inside) and not name.endswith("/"):
                path = folder / name.removeprefix(inside)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(name))
    shutil.rmtree(jars)
    minor = version.rpartition(".")[0]
    (folder / "bin" / f"python{minor}").chmod(0o755)
    return _SCRIPT.format(minor=minor)


def _copy(artifact: str, folder: Path) -> None:
    where = (f"-Dartifact={artifact}", f"-DoutputDirectory={folder}")
    done = run(["mvn", "-B", "-q", "dependency:copy", *where])
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if "ERROR" in line]
        raise Missing(f"mvn failed: {lines[0] if lines else done.stderr.strip()}")
