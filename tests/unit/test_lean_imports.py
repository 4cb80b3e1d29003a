"""What the agent imports without OpenSSL works as with it."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
from otel_gpu.lean_imports import import_grpc, import_hashes
import_hashes()
import_grpc()
import asyncio, hashlib, uuid
import grpc
said = {
    "before": [name for name in ("_hashlib", "_ssl") if sys.modules.get(name)],
    "digests": [getattr(hashlib, name)(b"97").hexdigest() for name in sys.argv[1:]],
    "uuid": str(uuid.uuid5(uuid.NAMESPACE_DNS, "otel_gpu")),
    "asyncio": asyncio.run(asyncio.sleep(0, 13)),
}
import ssl
said["tls"] = ssl.create_default_context().check_hostname
print(json.dumps(said))
"""
HASHES = ("blake2b", "sha1", "sha256", "sha512", "md5")


@pytest.fixture(scope="module")
def said():
    command = [sys.executable, "-c", PROGRAM, *HASHES]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_openssl_is_not_there_until_it_is_asked_for(said):
    """Whoever imports ssl afterwards has it."""
    assert said["before"] == []
    assert said["tls"] is True


def test_hashes_and_loops_are_the_same(said):
    """Python has functions of its own for them."""
    import hashlib  # noqa: PLC0415
    import uuid  # noqa: PLC0415

    assert said["digests"] == [getattr(hashlib, name)(b"97").hexdigest() for name in HASHES]
    assert said["uuid"] == str(uuid.uuid5(uuid.NAMESPACE_DNS, "otel_gpu"))
    assert said["asyncio"] == 13


LEAN = """
import json, sys
from otel_gpu.lean_imports import hollow, import_grpc
import_grpc()
from otel_gpu.capture.probes.prologues import read_prologue
import grpc
names = ["grpc.aio", "iced_x86.Code", "iced_x86.Mnemonic"]
said = {"before": [name for name in names if name in sys.modules]}
said["prologue"] = read_prologue(b"\\x53\\xc3", reads_stack=False)
said["channel"] = grpc.insecure_channel("127.0.0.1:1").unary_unary("/a/b") is not None
from grpc import aio
from iced_x86 import Code
said["after"] = [hasattr(aio, "insecure_channel"), Code.INVALID]
print(json.dumps(said))
"""


def test_parts_of_packages_are_not_there_until_they_are_asked_for():
    """What needs none of them works, and whoever imports one afterwards has it."""
    command = [sys.executable, "-c", LEAN]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert said["before"] == ["iced_x86.Mnemonic"]
    assert (said["prologue"], said["channel"]) == (["push", 0], True)
    assert said["after"] == [True, 0]
