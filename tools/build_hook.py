"""
Build hook of Hatchling that adds BPF objects, the libraries of ``preload/`` and libbpf to a wheel.

The objects are compiled for all architectures, the libraries for this one. libbpf and its dependencies
are exact copies from Debian packages of this machine, with their licences and the places of their
sources. The wheel's tag names the architecture and the oldest glibc that all of them need.

``OTEL_GPU_WHEEL_LIBBPF=none`` makes a wheel without libbpf, for distributions that have their own. It is
for every architecture, so it has no libraries, and instrumented programs publish nothing.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBBPF = "libbpf.so.1"
VARIABLE = "OTEL_GPU_WHEEL_LIBBPF"
ARCHITECTURES = {"x86_64": "x64", "aarch64": "AArch64"}
# Libraries of glibc, which must come from the system.
GLIBC = re.compile(r"^(ld-linux|lib(c|m|dl|rt|pthread)\.so)")
COMMON_LICENCES = Path("/usr/share/common-licenses")
# Snapshots of the whole Debian archive, with sources.
SOURCE_URL = "https://snapshot.debian.org/package/{source}/{version}/"
README = """\
The libraries in this folder are unmodified copies from Debian packages, and are used on hosts that
have no libbpf 1.0 or newer of their own. They are separate works under their own licences:
licences/PACKAGE.copyright has them, and licences/ the texts that it refers to. Any of them can be
replaced by another build of the same library.

"""


class BpfBuildHook(BuildHookInterface[Any]):
    """Compiles the BPF programs, and adds them, libbpf and the systemd unit."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build everything; an editable install leaves that to ``make bpf``, and uses the system's."""
        if version == "editable":
            return
        subprocess.run(["make", "-C", str(Path(self.root) / "bpf")], check=True)
        build_data["artifacts"].append("/otel_gpu/_bpf/*.o")
        # The files that `otel-gpu service install` installs; in a checkout they are in deploy/.
        units = Path(self.root) / "deploy" / "systemd"
        build_data["force_include"][str(units)] = "otel_gpu/cli/service/systemd"
        if os.environ.get(VARIABLE) == "none":
            return
        folder = Path(self.root) / ".output" / "_lib"
        glibc = bundle(folder)
        build_data["force_include"][str(folder)] = "otel_gpu/_lib"
        subprocess.run(["make", "-C", str(Path(self.root) / "preload")], check=True)
        build_data["artifacts"].append("/otel_gpu/_preload/*.so")
        for library in (Path(self.root) / "otel_gpu" / "_preload").glob("*.so"):
            glibc = max([glibc, *glibc_versions(library)])
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_{glibc[0]}_{glibc[1]}_{platform.machine()}"


def bundle(folder: Path) -> tuple[int, int]:
    """
    Fill a folder with libbpf, its dependencies, their licences and the places of their sources.

    Returns:
        The glibc version that they need.

    Raises:
        SystemExit: libbpf is missing, or not from a Debian package.
    """
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "licences").mkdir(parents=True)
    libraries = []
    glibc = (2, 17)
    for path in in_load_order(find_libraries()):
        shutil.copyfile(path.resolve(), folder / path.name)
        libraries.append({"file": path.name, "sha256": sha256(path), **origin(path.resolve())})
        copy_licences(libraries[-1]["package"], folder / "licences")
        glibc = max([glibc, *glibc_versions(path)])
    manifest = {"libraries": libraries, "glibc": "{}.{}".format(*glibc)}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    text = README + "".join(
        f"{entry['file']}: package {entry['package']} {entry['version']}, source code at\n"
        f"    {entry['source']}\n"
        for entry in libraries
    )
    (folder / "README").write_text(text, encoding="utf-8")
    return glibc


def find_libraries() -> dict[str, Path]:
    """Return libbpf and its dependencies on this machine, except glibc, by name."""
    listed = run("ldconfig", "-p")
    # ldconfig lists the libraries of other architectures too.
    places = [
        Path(path)
        for path in re.findall(rf"^\s*{re.escape(LIBBPF)} .*=> (.*)$", listed, re.MULTILINE)
        if architecture(Path(path)) == ARCHITECTURES.get(platform.machine())
    ]
    if not places:
        raise SystemExit(
            f"{LIBBPF} is not installed here; apt-get install libbpf1, or {VARIABLE}=none"
        )
    found = {LIBBPF: places[0]}
    for name, path in re.findall(r"^\s*(\S+) => (/\S+)", run("ldd", str(places[0])), re.MULTILINE):
        if not GLIBC.match(name):
            found[name] = Path(path)
    return found


def architecture(path: Path) -> str:
    """Return the architecture of a library, as pyelftools names it."""
    with path.open("rb") as file:
        return str(ELFFile(file).get_machine_arch())


def in_load_order(libraries: dict[str, Path]) -> Iterator[Path]:
    """Yield the libraries, each after its dependencies."""
    done: set[str] = set()

    def visit(name: str) -> Iterator[Path]:
        if name not in done:
            done.add(name)
            for needed in needed_names(libraries[name]):
                if needed in libraries:
                    yield from visit(needed)
            yield libraries[name]

    yield from visit(LIBBPF)


def needed_names(path: Path) -> list[str]:
    """Return the names in a library's DT_NEEDED entries."""
    with path.open("rb") as file:
        return [
            str(tag.needed)  # type: ignore[attr-defined]  # pyelftools names it so
            for section in ELFFile(file).iter_sections()
            if isinstance(section, DynamicSection)
            for tag in section.iter_tags("DT_NEEDED")
        ]


def glibc_versions(path: Path) -> list[tuple[int, int]]:
    """Return the versions of glibc's symbols that a library uses."""
    with path.open("rb") as file:
        names = [
            version.name
            for section in ELFFile(file).iter_sections()
            if isinstance(section, GNUVerNeedSection)
            for _, versions in section.iter_versions()
            for version in versions
        ]
    matches = [re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", name) for name in names]
    return [(int(match[1]), int(match[2])) for match in matches if match]


def origin(path: Path) -> dict[str, str]:
    """Return the Debian package of a file, and the URL of its source."""
    # With a merged /usr each file has two names, and the package lists one.
    merged = str(path).removeprefix("/usr")
    names = [f"/usr{merged}", merged]
    try:
        owner = run("dpkg-query", "-S", *names, check=False).partition(": ")[0].split(",")[0]
        fields = run(
            "dpkg-query",
            "-W",
            "-f",
            "${Package} ${Version} ${source:Package} ${source:Version}",
            owner,
        )
        package, version, source, source_version = fields.split()
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        raise SystemExit(
            f"{path} is from no Debian package, so that its licence and source are not known; "
            f"{VARIABLE}=none builds a wheel without it"
        ) from error
    url = SOURCE_URL.format(source=source, version=source_version)
    return {"package": package, "version": version, "source": url}


def copy_licences(package: str, folder: Path) -> None:
    """Copy a package's licence, and the common licences to which it refers."""
    text = (Path("/usr/share/doc") / package / "copyright").read_text(encoding="utf-8")
    (folder / f"{package}.copyright").write_text(text, encoding="utf-8")
    for name in sorted(set(re.findall(rf"{COMMON_LICENCES}/(L?GPL-[0-9.]*[0-9])", text))):
        shutil.copyfile(COMMON_LICENCES / name, folder / name)
    if (folder / "LGPL-3").exists():  # whose text is a list of exceptions from this one
        shutil.copyfile(COMMON_LICENCES / "GPL-3", folder / "GPL-3")


def sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(*command: str, check: bool = True) -> str:
    """Return the output of a command, also from folders that are not in PATH."""
    environment = os.environ | {
        "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin",
        "LC_ALL": "C",
    }
    return subprocess.run(
        command, env=environment, check=check, stdout=subprocess.PIPE, text=True
    ).stdout
