import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_gpu.procfs.process_context import (
    MAX_ATTRIBUTES,
    MAX_PAYLOAD_BYTES,
    parse_process_context,
    read_process_context,
)

# Publishes as an SDK does: memfd, mapping, payload behind the header, signature last.
PUBLISHER = r"""
import ctypes, mmap, os, struct, sys

kind, payload, version, published, size = (
    sys.argv[1], bytes.fromhex(sys.argv[2]), *map(int, sys.argv[3:])
)
length = 1 << 20
if kind == "memfd":
    descriptor = os.memfd_create("OTEL_CTX")
    os.ftruncate(descriptor, length)
    area = mmap.mmap(descriptor, length)
    os.close(descriptor)
else:
    area = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
area.madvise(mmap.MADV_DONTFORK)
address = ctypes.addressof(ctypes.c_char.from_buffer(area))
area[32:32 + len(payload)] = payload
size = len(payload) if size < 0 else size
area[8:32] = struct.pack("<IIQQ", version, size, published, address + 32)
area[0:8] = b"OTEL_CTX"
name = ctypes.create_string_buffer(b"OTEL_CTX")
libc = ctypes.CDLL(None, use_errno=True)
named = libc.prctl(
    0x53564D41, 0, ctypes.c_ulong(address), ctypes.c_ulong(length), ctypes.byref(name)
)
print("named" if named == 0 else "nameless", flush=True)
for line in sys.stdin:
    if line == "change\n":
        area[16:24] = bytes(8)
        print("changing", flush=True)
    else:
        break
"""


def context(**attributes):
    resource = Resource(
        attributes=[
            KeyValue(key=key.replace("_", "."), value=value) for key, value in attributes.items()
        ]
    ).SerializeToString()
    return field(1, resource)


def field(number, content):
    length = len(content)
    encoded = b""
    while length > 0x7F:
        encoded += bytes([length & 0x7F | 0x80])
        length >>= 7
    return bytes([number << 3 | 2]) + encoded + bytes([length]) + content


DEMO = context(
    service_name=AnyValue(string_value="demo"),
    service_instance_id=AnyValue(string_value="i-1"),
    host_cores=AnyValue(int_value=-3),
)


@pytest.fixture
def publish():
    running = []

    def start(kind="memfd", payload=DEMO, version=2, published=12345, size=-1):
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                PUBLISHER,
                kind,
                payload.hex(),
                *(str(number) for number in (version, published, size)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        process.naming = process.stdout.readline()
        assert process.naming in ("named\n", "nameless\n")
        return process

    yield start
    for process in running:
        process.communicate("\n", timeout=30)


def test_a_published_context_is_read(publish):
    """What an SDK publishes in a memfd is read from outside the process."""
    process = publish()

    assert read_process_context(process.pid) == {
        "service.name": "demo",
        "service.instance.id": "i-1",
        "host.cores": -3,
    }


def test_an_anonymous_mapping_is_found_by_its_name(publish):
    """Where memfd is forbidden, SDKs name an anonymous mapping instead."""
    process = publish("anonymous")
    if process.naming == "nameless\n":
        pytest.skip("the kernel cannot name anonymous mappings (CONFIG_ANON_VMA_NAME)")

    assert read_process_context(process.pid)["service.name"] == "demo"


@pytest.mark.parametrize(
    "published",
    [
        {"version": 1},
        {"version": 3},
        {"published": 0},
        {"size": MAX_PAYLOAD_BYTES + 1},
        {"size": (1 << 32) - 1},
        {"payload": b"\xff" * 100},
        {"payload": b""},
    ],
    ids=str,
)
def test_a_context_that_cannot_be_trusted_is_none(publish, published):
    """Other versions, unfinished writes, absurd sizes and nonsense are not read."""
    assert read_process_context(publish(**published).pid) == {}


def test_a_context_under_change_is_left_alone(publish):
    """While the publisher writes, there is nothing to read."""
    process = publish()
    process.stdin.write("change\n")
    process.stdin.flush()
    assert process.stdout.readline() == "changing\n"

    assert read_process_context(process.pid) == {}


def write_process(proc, mapping, header, payload=DEMO):
    """Write a /proc/42 whose memory has a header at 0x1000 and a payload at 0x2000."""
    folder = proc / "42"
    folder.mkdir()
    (folder / "maps").write_text(
        "00400000-00401000 r-xp 00000000 08:01 5          /opt/OTEL_CTX-server\n"
        f"00001000-00003000 {mapping}\n"
    )
    (folder / "mem").write_bytes(bytes(0x1000) + header.ljust(0x1000, b"\0") + payload)


def header(address=0x2000, longer_by=0, signature=b"OTEL_CTX"):
    size = len(DEMO) + longer_by
    return struct.pack("<8sIIQQ", signature, 2, size, 12345, address)


@pytest.mark.parametrize(
    "mapping",
    [
        "rw-s 00000000 00:01 99                         /memfd:OTEL_CTX (deleted)",
        "rw-s 00000000 00:01 99                         [anon_shmem:OTEL_CTX]",
        "r--p 00000000 00:00 0                          [anon:OTEL_CTX]",
    ],
)
def test_each_name_of_the_mapping_is_known(tmp_path, mapping):
    """The kernel shows the name in one of three forms; other paths that hold it are not it."""
    write_process(tmp_path, mapping, header())

    assert read_process_context(42, tmp_path)["service.name"] == "demo"


@pytest.mark.parametrize(
    "wrong",
    [
        header(address=0),
        header(address=0x900000),
        header(address=(1 << 64) - 1),
        header(longer_by=1),
        header(signature=b"OTEL_CTY"),
        b"",
    ],
)
def test_a_header_that_points_nowhere_is_none(tmp_path, wrong):
    """The address of the payload is the publisher's to choose, and may be wrong."""
    write_process(tmp_path, "rw-s 00000000 00:01 99    /memfd:OTEL_CTX (deleted)", wrong)

    assert read_process_context(42, tmp_path) == {}


def test_a_mapping_that_may_not_be_read_is_none(tmp_path):
    """The name alone proves nothing: without read permission there is no header."""
    write_process(tmp_path, "---p 00000000 00:00 0    [anon:OTEL_CTX]", header())

    assert read_process_context(42, tmp_path) == {}


def test_a_process_without_a_context_has_none(tmp_path):
    """Most processes publish nothing, and some are gone."""
    assert read_process_context(1 << 22, tmp_path) == {}


def test_all_kinds_of_values_are_decoded():
    """Text, truth, numbers and lists of them are attributes; the rest is left out."""
    payload = context(
        text=AnyValue(string_value="Köln"),
        truth=AnyValue(bool_value=True),
        number=AnyValue(int_value=-(1 << 63)),
        fraction=AnyValue(double_value=0.5),
        infinity=AnyValue(double_value=float("inf")),
        listed=AnyValue(
            array_value=ArrayValue(values=[AnyValue(string_value="a"), AnyValue(string_value="b")])
        ),
        octets=AnyValue(bytes_value=b"x"),
        nothing=AnyValue(),
    )

    assert parse_process_context(payload) == {
        "text": "Köln",
        "truth": True,
        "number": -(1 << 63),
        "fraction": 0.5,
        "listed": ["a", "b"],
    }


def test_fields_of_later_versions_are_skipped():
    """Additional attributes and unknown fields do not hide the resource."""
    extra = KeyValue(key="threadlocal.schema_version", value=AnyValue(string_value="v1"))
    unknown = b"\x7d\x01\x02\x03\x04" + b"\x79" + bytes(8) + b"\x78\x05"

    attributes = parse_process_context(unknown + field(2, extra.SerializeToString()) + DEMO)

    assert attributes["service.name"] == "demo"
    assert "threadlocal.schema_version" not in attributes


def test_attributes_are_bounded():
    """A publisher cannot make the agent carry more than a fixed number of attributes."""
    payload = context(**{f"k{i}": AnyValue(string_value="v" * 9000) for i in range(300)})
    attributes = parse_process_context(payload)

    assert len(attributes) == MAX_ATTRIBUTES
    assert {len(value) for value in attributes.values()} == {4096}


@given(st.binary(max_size=200))
def test_no_bytes_stop_the_parser(payload):
    """Whatever is published, parsing ends with attributes or without."""
    assert isinstance(parse_process_context(payload), dict)


@given(st.integers(0, len(DEMO) - 1))
def test_a_cut_context_is_none(length):
    """A message that ends too early says nothing that can be trusted."""
    assert parse_process_context(DEMO[:length]) == {}
