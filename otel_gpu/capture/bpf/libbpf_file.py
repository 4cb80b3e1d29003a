"""
The libbpf that the agent loads: the system's, or the one in the wheel.

The system's comes first, because it gets the system's updates. A wheel contains its own, with its
dependencies, for hosts without one or with an old one; see ``tools/build_hook.py``.
"""

import ctypes
import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

from otel_gpu.errors import HostError

MINIMUM_VERSION = (1, 0)
SYSTEM_NAME = "libbpf.so.1"
BUNDLE_FOLDER = Path(__file__).resolve().parents[2] / "_lib"
MANIFEST_NAME = "manifest.json"

_HINT = "install libbpf 1.0 or newer (Debian, Ubuntu: libbpf1; Fedora: libbpf)"


class LoadedLibbpf(NamedTuple):
    """
    A loaded libbpf that is new enough; its functions have no signatures yet.

    ``passed_over``: why the system's was not used; empty if it is the system's.
    """

    library: ctypes.CDLL
    version: tuple[int, int]
    path: str
    passed_over: str = ""


class _SymbolInfo(ctypes.Structure):
    # ``Dl_info`` of dladdr(3).

    _fields_ = [
        ("dli_fname", ctypes.c_char_p),
        ("dli_fbase", ctypes.c_void_p),
        ("dli_sname", ctypes.c_char_p),
        ("dli_saddr", ctypes.c_void_p),
    ]


def open_libbpf(bundle: Path = BUNDLE_FOLDER) -> LoadedLibbpf:
    """
    Load the system's libbpf if it is new enough, else the bundled one, which only wheels have.

    The choice is final for the process: once the bundled one is loaded, glibc returns it under the
    system's name, too.

    Raises:
        HostError: Neither can be used.
    """
    found = _find(bundle)
    # A handle of its own for each caller, because signatures are set on the handle.
    return found._replace(library=ctypes.CDLL(found.path, use_errno=True))


@functools.cache
def _find(bundle: Path) -> LoadedLibbpf:
    try:
        return _checked(ctypes.CDLL(SYSTEM_NAME, use_errno=True))
    except (OSError, AttributeError, HostError) as error:
        reason = str(error)
    if not (bundle / MANIFEST_NAME).exists():
        raise HostError(f"no usable libbpf: {reason}", hint=_HINT)
    try:
        return _checked(_load_bundle(bundle))._replace(passed_over=reason)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, HostError) as error:
        message = f"there is no libbpf of use: {reason}; and the one of this installation: {error}"
        raise HostError(message, hint="install otel-gpu again, or " + _HINT) from error


def _load_bundle(folder: Path) -> ctypes.CDLL:
    # The list has dependencies first. glibc resolves a needed name to a library that is already
    # loaded, so no search path is needed.
    manifest: dict[str, Any] = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    return [
        ctypes.CDLL(str(folder / entry["file"]), use_errno=True) for entry in manifest["libraries"]
    ][-1]


def _checked(library: ctypes.CDLL) -> LoadedLibbpf:
    version = (int(library.libbpf_major_version()), int(library.libbpf_minor_version()))
    path = _path_of(library)
    if version < MINIMUM_VERSION:
        message = "{}: libbpf {}.{} is too old".format(path, *version)
        raise HostError(message, hint=_HINT)
    return LoadedLibbpf(library, version, path)


def _path_of(library: ctypes.CDLL) -> str:
    info = _SymbolInfo()
    function = ctypes.cast(library.libbpf_major_version, ctypes.c_void_p)
    dladdr = ctypes.CDLL(None).dladdr
    dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(_SymbolInfo)]
    found = dladdr(function, ctypes.byref(info)) and info.dli_fname
    return found.decode(errors="replace") if found else SYSTEM_NAME
