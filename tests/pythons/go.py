"""
Standalone builds, from a Go module that embeds them.

They are the builds that uv installs: made by clang with link-time and profile-guided
optimisation, to be put anywhere. libpython is inside the executable from 3.14 on, and a
library next to it before.
"""

import gzip
import json
import platform
import shutil
from pathlib import Path

from tests.pythons.missing import Missing, run

_MODULE = "github.com/kluctl/go-embed-python"
# Version of Python -> version of the module, and Go's checksum of it.
_PINS = {
    "3.10.16": ("v0.0.0-3.10.16-20241219-1", "h1:bfJRrtWlbdrPtwXXXZzA95yj2Pr9AvSbxDEm8YvbaP0="),
    "3.11.11": ("v0.0.0-3.11.11-20241219-1", "h1:yVXFTxa6cvhLC6TwkDEHmNaiWlDyaFEGiXd1DQdoeOU="),
    "3.13.1": ("v0.0.0-3.13.1-20241219-1", "h1:x1cSEj4Ug5mpuZgUHLvUmlc5r//KHFn6iYiRSrRcVy4="),
    "3.14.6": ("v0.0.0-3.14.6-20260610-1", "h1:oGUS7++Wm3LgxUfD6AmJgKbKQD2wdQFO9PzyJv6T+E4="),
}
_MACHINES = {"x86_64": "linux-amd64", "aarch64": "linux-arm64"}

_SCRIPT = """#!/bin/sh
exec "$(dirname "$0")"/bin/python{minor} "$@"
"""


def install(folder: Path, version: str) -> str:
    """
    Unpack one version; return the script that starts it.

    Raises:
        Missing: There is no Go, or it cannot get the module.
    """
    source = _download(version) / "python" / "internal" / "data"
    source /= _MACHINES.get(platform.machine(), platform.machine())
    if not source.is_dir():
        raise Missing(f"{_MODULE} has nothing for {platform.machine()}")
    for entry in json.loads((source / "files.json").read_text())["files"]:
        path = folder / entry["name"]
        packed = source / f"{entry['name']}.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        if "symlink" in entry:
            path.symlink_to(entry["symlink"])
        elif packed.exists():
            with gzip.open(packed) as source_file, path.open("wb") as file:
                shutil.copyfileobj(source_file, file)
            path.chmod(entry["perm"] & 0o777)
        elif (source / entry["name"]).is_file():
            shutil.copyfile(source / entry["name"], path)
            path.chmod(entry["perm"] & 0o777)
    return _SCRIPT.format(minor=version.rpartition(".")[0])


def _download(version: str) -> Path:
    if shutil.which("go") is None:
        raise Missing("there is no go, which gets the standalone builds")
    module, checksum = _PINS[version]
    done = run(["go", "mod", "download", "-json", f"{_MODULE}@{module}"])
    told = json.loads(done.stdout or "{}")
    if "Dir" not in told:
        raise Missing(f"go mod download failed: {told.get('Error', done.stderr.strip())}")
    if told["Sum"] != checksum:
        raise AssertionError(f"{_MODULE} {module} has the checksum {told['Sum']}")
    return Path(told["Dir"])
