"""
Reads the layout of the kernel's types from its headers, with BCC.

BCC is a package of the distribution, for the distribution's Python. The bcc on PyPI is something else.
"""

import json
import logging
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from otel_gpu.capture.bpf.bcc.kernel_types import SOURCE, KernelTypes, expressions, read_types
from otel_gpu.errors import HostError

_CHILD = Path(__file__).with_name("child.py")
_SYSTEM_PYTHON = "/usr/bin/python3"
_COMPILE_SECONDS = 300.0
_MAX_PRINTED = 300

_NO_BCC = ("ImportError", "ModuleNotFoundError")
_NO_HEADERS = "Unable to find kernel headers"
_ERROR_LINE = re.compile(r"^\S.*?error: .*$", re.MULTILINE)

# Command, package of BCC and package of the headers, by ID or ID_LIKE of os-release(5).
_INSTALL: Mapping[str, tuple[str, str, str]] = {
    "debian": ("apt-get install", "python3-bpfcc", "linux-headers-{}"),
    "ubuntu": ("apt-get install", "python3-bpfcc", "linux-headers-{}"),
    "fedora": ("dnf install", "python3-bcc", "kernel-devel-{}"),
    "rhel": ("dnf install", "python3-bcc", "kernel-devel-{}"),
    "suse": ("zypper install", "python3-bcc", "kernel-default-devel"),
    "arch": ("pacman -S", "python-bcc", "linux-headers"),
}
_IN_WORDS = ("", "BCC with its Python module", "the headers of kernel {}")
_JETSON = ("-tegra", "nvidia-l4t-kernel-headers")

_logger = logging.getLogger(__name__)


def ask_headers() -> KernelTypes:
    """
    Compile the kernel's headers, which takes a second or two, and return the layout of the types.

    Raises:
        HostError: BCC or the headers are missing, unusable, or of another kernel.
    """
    release = os.uname().release
    began_s = time.monotonic()
    types = read_types(_compile(release))
    if types.release != release:
        raise HostError(
            f"the kernel headers that BCC finds are of {types.release}, but {release} runs: "
            "the programs would read the wrong memory",
            hint=install_hint(release, bcc=False),
        )
    took_s = time.monotonic() - began_s
    _logger.info("types of kernel %s are from its headers, through BCC, in %.1f s", release, took_s)
    return types


def find_bcc() -> str | None:
    """Return the path of a Python that has BCC; None if there is none."""
    question: Mapping[str, object] = {"source": "", "expressions": []}
    return next((path for path in _pythons() if "error" not in _ask(path, question)), None)


def find_headers(release: str, root: Path = Path("/")) -> str | None:
    """Return the path from which BCC would read a kernel's headers; None if there are none."""
    named = os.environ.get("BCC_KERNEL_SOURCE")
    modules = root / "lib" / "modules" / release
    folders = [Path(named)] if named else [modules / "source", modules / "build"]
    for folder in folders:
        if (folder / "include" / "linux" / "kconfig.h").exists():
            return str(folder)
    packed = root / "sys" / "kernel" / "kheaders.tar.xz"
    return str(packed) if packed.exists() else None


def install_hint(
    release: str, *, bcc: bool = True, headers: bool = True, os_release: Path | None = None
) -> str:
    """Return the command that installs BCC and headers on the distribution of ``os_release``."""
    tool, bcc_package, headers_package = next(
        (_INSTALL[name] for name in _distribution(os_release) if name in _INSTALL), _IN_WORDS
    )
    if release.endswith(_JETSON[0]):
        headers_package = _JETSON[1]
    wanted = [bcc_package] * bcc + [headers_package.format(release)] * headers
    return f"{tool} {' '.join(wanted)}" if tool else "install " + " and ".join(wanted)


def _distribution(os_release: Path | None) -> Iterable[str]:
    try:
        if os_release is None:
            facts = platform.freedesktop_os_release()
        else:
            lines = os_release.read_text(encoding="utf-8").splitlines()
            pairs = (line.split("=", 1) for line in lines if "=" in line)
            facts = {name: value.strip("\"'") for name, value in pairs}
    except OSError:
        return ()
    return (facts.get("ID", ""), *facts.get("ID_LIKE", "").split())


def _compile(release: str) -> Mapping[str, int | None]:
    asked = expressions()
    question = {"source": SOURCE, "expressions": asked}
    answers = (_ask(python, question) for python in _pythons())
    has_bcc = (one for one in answers if not str(one.get("error", "")).startswith(_NO_BCC))
    answer = next(has_bcc, None)
    if answer is None:
        raise HostError(
            "BCC is not installed, and the kernel has no BTF",
            hint=install_hint(release, headers=find_headers(release) is None),
        )
    log = str(answer.get("log", ""))
    values = answer.get("values")
    if isinstance(values, list) and len(values) == len(asked):
        return dict(zip(asked, values, strict=True))
    if _NO_HEADERS in log:
        raise HostError(
            f"no headers of kernel {release}, and the kernel has no BTF",
            hint=install_hint(release, bcc=False) + "; or name their folder in BCC_KERNEL_SOURCE",
        )
    first = _ERROR_LINE.search(log)
    reason = first[0] if first else str(answer.get("error", "it gave no answer"))
    raise HostError(
        f"BCC cannot compile the headers of kernel {release}: {reason[:_MAX_PRINTED]}",
        hint="try a newer BCC",
    )


def _pythons() -> Iterable[str]:
    # The distribution's, and ours, which may see the distribution's modules.
    return dict.fromkeys((_SYSTEM_PYTHON, sys.executable))


def _ask(python: str, question: Mapping[str, object]) -> Mapping[str, object]:
    try:
        child = subprocess.run(
            [python, "-I", str(_CHILD)],
            # Only BCC's own variables: ours are not for the other Python.
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
            | {name: value for name, value in os.environ.items() if name.startswith("BCC_")},
            input=json.dumps(question),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMPILE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"BCC was not done after {_COMPILE_SECONDS:.0f} s"}
    except OSError as error:
        return {"error": f"{_NO_BCC[0]}: {error}"}
    try:
        answer = json.loads(child.stdout)
    except ValueError:
        return {"error": f"BCC ended with {child.returncode}", "log": child.stderr}
    return answer if isinstance(answer, dict) else {}
