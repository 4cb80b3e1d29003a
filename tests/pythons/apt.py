"""
Debian's interpreters of any suite, unpacked into a folder with that suite's C library.

apt works in a root of its own here: it resolves against an empty system, so that everything
down to the C library comes along, and nothing of the host changes. The mirror is the one
that the host itself uses.
"""

import os
import platform
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from tests.pythons.missing import Missing, run

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

# Runs the interpreter through the loader that came with it: the host's C library may be older.
_SCRIPT = """#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
libraries=$(echo "$here"/usr/lib/*-linux-gnu)
exec "$libraries"/{loader} --library-path "$libraries" "$here"/usr/bin/{executable} "$@"
"""
_LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}


def install(folder: Path, suite: str, package: str) -> str:
    """
    Unpack a package and all that it needs; return the script that starts it.

    Raises:
        Missing: There is no apt or no mirror, or the mirror lacks the suite or the package.
    """
    if shutil.which("apt-get") is None or not _KEYRING.exists():
        raise Missing("there is no apt-get with Debian's keys")
    loader = _LOADERS.get(platform.machine())
    if loader is None:
        raise Missing(f"no loader is known for {platform.machine()}")
    root = folder / "apt"
    configuration = _configure(root, suite)
    _apt(configuration, "update")
    _apt(configuration, "--download-only", "--no-install-recommends", "install", package)
    for archive in sorted((root / "archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", archive, folder], check=True)
    # Before Debian 13, libraries were in /lib and /lib64.
    for old in folder.glob("lib/*-linux-gnu"):
        shutil.copytree(old, folder / "usr" / "lib" / old.name, symlinks=True, dirs_exist_ok=True)
    shutil.rmtree(root)
    return _SCRIPT.format(loader=loader, executable=package)


def _configure(root: Path, suite: str) -> Path:
    for part in ("archives/partial", "lists/partial", "state", "etc"):
        (root / part).mkdir(parents=True)
    (root / "status").touch()
    sources = root / "sources.list"
    sources.write_text(f"deb [signed-by={_KEYRING}] {_mirror()} {suite} main\n")
    configuration = root / "apt.conf"
    settings = {
        "Dir::Etc": root / "etc",
        # How to reach the mirror is the host's to say.
        "Dir::Etc::main": "/etc/apt/apt.conf",
        "Dir::Etc::parts": "/etc/apt/apt.conf.d",
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "-",
        "Dir::State": root / "state",
        "Dir::State::lists": root / "lists",
        "Dir::State::status": root / "status",
        "Dir::Cache": root,
        "Dir::Cache::archives": root / "archives",
        "APT::Update::Error-Mode": "any",
        "Acquire::Languages": "none",
        # A mirror may be late, or this clock early; signatures are checked all the same.
        "Acquire::Check-Valid-Until": "false",
        "Acquire::Check-Date": "false",
        "APT::Sandbox::User": "root",
    }
    configuration.write_text("".join(f'{key} "{value}";\n' for key, value in settings.items()))
    return configuration


def _mirror() -> str:
    """Return where the host gets its own suite from."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)"],
        capture_output=True,
        text=True,
        check=False,
    )
    release = Path("/etc/os-release")
    text = release.read_text(encoding="utf-8") if release.exists() else ""
    suite = re.search(r"^VERSION_CODENAME=(.*)$", text, re.MULTILINE)
    name = shlex.split(suite[1])[0] if suite and suite[1] else ""
    for line in listed.stdout.splitlines():
        address, _, rest = line.partition(" ")
        if name and rest == f"{name} main":
            return address
    raise Missing("apt knows no mirror of Debian")


def _apt(configuration: Path, *arguments: str) -> None:
    env = os.environ | {"APT_CONFIG": str(configuration), "LC_ALL": "C"}
    done = run(["apt-get", "-q", "-y", *arguments], env)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no word"]
        raise Missing(f"apt-get {arguments[0]} failed: {lines[-1]}")
