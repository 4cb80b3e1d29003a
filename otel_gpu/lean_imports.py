"""
Imports that leave out what the agent does not use, to save memory.

OpenSSL takes 5 MB. hashlib prefers it to its own functions, and asyncio, which gRPC imports, uses it for
TLS sockets. Both work without it, as Python can be built so. Some packages import more than is used: gRPC
its asyncio interface, and iced-x86 the names of 5,000 instructions, 4 MB.
"""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

# hashlib's own implementations; Python can be built without them.
_OWN_HASHES = ("_blake2", "_md5", "_sha1", "_sha3")


@contextmanager
def without(*modules: str) -> Iterator[None]:
    """Make imports of these modules fail inside, unless they are imported already."""
    missing = [name for name in modules if name not in sys.modules]
    # To Python, None marks a module that does not exist.
    sys.modules.update(dict.fromkeys(missing))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in missing:
            sys.modules.pop(name, None)


@contextmanager
def hollow(*modules: str) -> Iterator[None]:
    """Replace these modules by empty ones inside, unless they are imported already."""
    missing = [name for name in modules if name not in sys.modules]
    sys.modules.update({name: ModuleType(name) for name in missing})
    try:
        yield
    finally:
        for name in missing:
            found = sys.modules.pop(name, None)
            package, _, attribute = name.rpartition(".")
            parent = sys.modules.get(package)
            # From now on, an import gets the real module.
            if found is not None and getattr(parent, attribute, None) is found:
                delattr(parent, attribute)


def import_grpc() -> None:
    """Import gRPC without its asyncio interface, and asyncio without TLS: gRPC has its own."""
    with without("ssl"):
        import asyncio  # noqa: F401, PLC0415
    with hollow("grpc.aio"):
        import grpc  # type: ignore[import-untyped] # noqa: F401, PLC0415


def import_hashes() -> None:
    """Make hashlib and hmac use their own functions from now on, if Python has them."""
    if all(importlib.util.find_spec(name) for name in _OWN_HASHES):
        sys.modules.setdefault("_hashlib", None)  # type: ignore[arg-type]
