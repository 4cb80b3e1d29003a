"""
Imports without what the agent does not use, and would have in memory for as long as it runs.

OpenSSL is 5 MB. hashlib prefers it to its own functions, and asyncio, which gRPC imports, knows sockets
with it; both work without, as Python can be built so. Some packages import all that they have: gRPC its
interface for asyncio, and iced-x86 the names of 5,000 instructions, which are 4 MB.
"""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

# What hashlib has of its own; a Python can be built without.
_OWN_HASHES = ("_blake2", "_md5", "_sha1", "_sha3")


@contextmanager
def without(*modules: str) -> Iterator[None]:
    """Have imports find that these are not installed, but for those that are there already."""
    missing = [name for name in modules if name not in sys.modules]
    # None is how Python is told that there is no such module.
    sys.modules.update(dict.fromkeys(missing))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in missing:
            sys.modules.pop(name, None)


@contextmanager
def hollow(*modules: str) -> Iterator[None]:
    """Have imports find empty modules in place of these, but for those that are there already."""
    missing = [name for name in modules if name not in sys.modules]
    sys.modules.update({name: ModuleType(name) for name in missing})
    try:
        yield
    finally:
        for name in missing:
            found = sys.modules.pop(name, None)
            package, _, attribute = name.rpartition(".")
            parent = sys.modules.get(package)
            # Whoever asks for it from now on gets the real one.
            if found is not None and getattr(parent, attribute, None) is found:
                delattr(parent, attribute)


def import_grpc() -> None:
    """Import gRPC without its interface for asyncio, and asyncio without TLS: gRPC has its own."""
    with without("ssl"):
        import asyncio  # noqa: F401, PLC0415
    with hollow("grpc.aio"):
        import grpc  # type: ignore[import-untyped] # noqa: F401, PLC0415


def import_hashes() -> None:
    """Have hashlib and hmac go without OpenSSL, where they can, from now on."""
    if all(importlib.util.find_spec(name) for name in _OWN_HASHES):
        sys.modules.setdefault("_hashlib", None)  # type: ignore[arg-type]
