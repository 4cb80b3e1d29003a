"""What a process chooses: its texts in /proc, its published context, its preload library's memory, its secrets."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_gpu import wire
from otel_gpu.capture.host.kernel_log import KernelLog
from otel_gpu.capture.preload.cpu_times import PreloadTimes, spent
from otel_gpu.capture.preload.shared_memory import PreloadError, count_rows, read_memory
from otel_gpu.capture.preload.step_detection import PreloadDetectors
from otel_gpu.enrich.identity.containers import choose_cgroup, find_container
from otel_gpu.enrich.identity.services import name_service, parse_resource_attributes
from otel_gpu.limits.work_budget import Share, WorkBudget
from otel_gpu.procfs import mounts, process_context, sockets
from otel_gpu.procfs.jobs import describe_job
from otel_gpu.procfs.mapped_files import executable_mappings
from otel_gpu.procfs.process_facts import read_facts
from otel_gpu.procfs.redaction import mask_secrets
from otel_gpu.wire.agent_records import json_record
from tests.fuzz.target import Target
from tests.unit.capture.preload.test_shared_memory import CALL, Memory, series

_ID = b"0123456789abcdef" * 4
_FILES = {
    "stat": b"4242 (a) b) S 1 4242 4242 0 -1 4194560 " + b"7 " * 40,
    "status": b"Name:\ta\nTgid:\t4242\nUid:\t1000\t1000\t1000\t1000\nNSpid:\t4242\t7\n",
    "cmdline": b"python\0-m\0train\0--api-key\0hunter2\0",
    "environ": b"OTEL_SERVICE_NAME=a\0OTEL_RESOURCE_ATTRIBUTES=a=b,c=%41\0RANK=1\0WORLD_SIZE=2\0",
    "cgroup": b"0::/kubepods.slice/kubepods-pod"
    b"01234567_89ab_cdef_0123_456789abcdef.slice/cri-containerd-"
    + _ID
    + b".scope\n1:name=systemd:/\n",
    "mountinfo": b"36 35 98:0 /f /mnt/a\\040b rw - fuse.sshfs host:/f rw\n"
    b"37 35 8:1 /var/lib/docker/containers/"
    + _ID
    + b"/hostname /etc/hostname rw - ext4 /dev/sda rw\n",
    "maps": b"7f0000000000-7f0000001000 r-xp 00000000 08:01 77 /a b/libcudart.so.12 (deleted)\n"
    b"7f0000002000-7f0000003000 rw-s 00000000 00:01 78 /memfd:otel_gpu_preload (deleted)\n",
    "net": b"  sl  local_address rem_address   st\n"
    b"   0: 0100007F:1F90 00000000:0000 0A 0:0 0:0 0 0 0 4180048 1 0\n"
    b"   1: 00000000000000000000000001000000:1F90 0:0 0A 0:0 0:0 0 0 0 4180049 1 0\n",
}
_MARK = b"\n==%s==\n"


def _process_seeds() -> Iterator[bytes]:
    yield b"".join(_MARK % name.encode() + text for name, text in _FILES.items())


def parse_process(data: bytes, folder: Path) -> None:
    """All texts that /proc has of a process; an input has them one after the other."""
    files = dict(_FILES)
    for part in data.split(b"\n==")[1:]:
        name, _, text = part.partition(b"==\n")
        if name.decode("latin-1") in files:
            files[name.decode("latin-1")] = text
    process = folder / "4242"
    (process / "ns").mkdir(parents=True)
    for name, text in files.items():
        (process / name).write_bytes(text)
    (process / "exe").symlink_to("/usr/bin/python3")
    (process / "ns" / "user").symlink_to(Path("/proc/self/ns/user").readlink())
    facts = read_facts(4242, folder)
    if facts is not None:
        json_record(wire.RECORD_PROCESS, 5, facts, pid=4242)
        find_container(facts["cgroups"])
        choose_cgroup(facts["cgroups"])
        name_service(
            context=facts["otel_context"],
            environment=facts["env"],
            exe=facts["exe"],
            command_args=facts["command_args"],
            comm=facts["comm"],
        )
        list(describe_job(facts["env"]))
    list(executable_mappings(4242, files["maps"].decode("utf-8", "replace")))
    with mock.patch.object(
        mounts, "read_file", lambda _path, limit, *_: files["mountinfo"][:limit]
    ):
        mounts.find_mount(4242, 98 << 20, "/mnt/a b/c")
    with mock.patch.object(sockets, "read_file", lambda _path, limit: files["net"][:limit]):
        sockets.listening_ports(4242)


def parse_command_line(data: bytes, _folder: Path) -> None:
    """Secrets of a command line; what is masked once stays as it is."""
    arguments = [part.decode("utf-8", "replace")[:4096] for part in data.split(b"\0")[:64]]
    masked = mask_secrets(arguments)
    assert len(masked) == len(arguments)
    assert mask_secrets(masked) == masked


def _command_line_seeds() -> Iterator[bytes]:
    yield b"curl\0-H\0Authorization: Bearer abc\0https://user:p@ss@host/?token=abc&b=c#d"
    yield b'serve\0--env=HF_TOKEN=abc\0--json={"api_key": "a\\"b", "n": [1]}\0--pass\0x\0a=b=c=d=e'
    yield b"docker\0run\0image@sha256:0123\0X-Api-Key : abc\0--db.password='a b'\0redis://:pw@h:1/0"


def parse_process_context(data: bytes, _folder: Path) -> None:
    """The resource that an SDK publishes: its header, and what that leads to."""
    header, base = process_context._HEADER.size, 0x7F00_0000_0000
    payload = process_context._read_payload(
        lambda address, size: data[address - base :][:size] if address >= base else b"", base
    )
    for one in (payload or b"", data[header:]):
        found = process_context.parse_process_context(one)
        assert len(found) <= process_context.MAX_ATTRIBUTES
        json_record(wire.RECORD_PROCESS, 5, {"otel_context": found}, pid=1)


def _process_context_seeds() -> Iterator[bytes]:
    values = (
        AnyValue(string_value="a"),
        AnyValue(double_value=float("nan")),
        AnyValue(int_value=-1),
        AnyValue(bool_value=True),
        AnyValue(array_value=ArrayValue(values=[AnyValue(string_value="b")] * 3)),
    )
    pairs = [KeyValue(key=f"key.{number}", value=value) for number, value in enumerate(values)]
    resource = Resource(attributes=pairs).SerializeToString()
    payload = b"\x0a" + bytes([len(resource)]) + resource
    base = 0x7F00_0000_0000 + process_context._HEADER.size
    yield process_context._HEADER.pack(b"OTEL_CTX", 2, len(payload), 1, base) + payload


_PRELOAD_SLOTS = 3
PLENTY = Share(1e9, 1e9)


def _preload_pieces() -> tuple[tuple[int, int], ...]:
    """Where in the preload library's memory an input is: header, shared series, slots, periods."""
    head = wire.PRELOAD_SLOT.size - wire.PRELOAD_SLOT_SERIES * wire.PRELOAD_SERIES.size
    slots = [
        wire.PRELOAD_SLOTS_OFFSET + number * wire.PRELOAD_SLOT.size
        for number in range(_PRELOAD_SLOTS)
    ]
    return (
        (0, wire.PRELOAD_HEADER.size),
        (wire.PRELOAD_COMMON_OFFSET, 2 * wire.PRELOAD_SERIES.size),
        *((slot, head) for slot in slots),
        *((slot + head, 2 * wire.PRELOAD_SERIES.size) for slot in slots),
        *(
            (wire.PRELOAD_DETECTORS_OFFSET + number * wire.PRELOAD_DETECTOR_BYTES, size)
            for number, size in ((0, 4096), (1, wire.PRELOAD_DETECTOR.offset_of("calls") + 4096))
        ),
    )


def _preload_seeds() -> Iterator[bytes]:
    memory = Memory(slots_begun=3, common_begun=1, pid=os.getpid())
    memory.write(wire.PRELOAD_COMMON_OFFSET, series(CALL, sum=10, max=10, buckets_3=1))
    memory.slot(0, series(CALL, sum=7, max=7, buckets_2=1), tid=os.getpid(), depth=1)
    memory.slot(1, tid=7, depth=8, last_api=CALL["api"])
    memory.slot(2, series(CALL, sum=20, max=13, buckets_3=2), last_return_ktime_ns=5)
    fields = {"tid": os.getpid(), "pid": os.getpid(), "kept": 3, "area": 1, "history": 7}
    fields = {f"detector.{name}": value for name, value in fields.items()} | {"iterations_made": 2}
    period = wire.PRELOAD_DETECTOR.build(**fields)
    memory.write(wire.PRELOAD_DETECTORS_OFFSET, period)
    yield b"".join(memory.read(*piece) for piece in _preload_pieces())


def parse_preload(data: bytes, folder: Path) -> None:
    """The memory that a preload library shares, as whoever maps it can write it."""
    at, path = 0, folder / "preload"
    with path.open("w+b") as file:
        file.truncate(wire.PRELOAD_BYTES)
        for offset, size in _preload_pieces():
            os.pwrite(file.fileno(), data[at : at + size], offset)
            at += size
        fd = file.fileno()
        detectors = PreloadDetectors([0] * 1024, WorkBudget(PLENTY, PLENTY, PLENTY))
        detectors.add((os.getpid(), 5), fd, os.getuid())
        for index, fields in list(detectors.taken())[:4]:
            assert fields["pid"] == os.getpid()
            detectors.calls(index)
            detectors.iterations(index, is_last=True)
        detectors.close()
        rows = count_rows(lambda offset, size: os.pread(fd, size, offset))
        reading = read_memory(lambda offset, size: os.pread(fd, size, offset))
        assert len(reading.series) + reading.left_out <= rows
    for aggregate in reading.series.values():
        assert len(aggregate) == wire.AGGREGATE.size
    assert all(time_ns >= 0 for time_ns in spent(reading, 1 << 62).values())
    PreloadTimes(reading).divide([], reading, (5, 10))


def parse_resource_texts(data: bytes, _folder: Path) -> None:
    """Attributes in the environment."""
    text = data.decode("utf-8", "replace")[:4096]
    assert all(isinstance(value, str) for value in parse_resource_attributes(text).values())


def parse_kernel_log(data: bytes, _folder: Path) -> None:
    """Lines of /dev/kmsg, where programs choose their names."""
    log = KernelLog("")
    for line in data.split(b"\n")[:1000]:
        found = log._take(line)
        assert found is None or len(found.name) <= 256


def _kernel_log_seeds() -> Iterator[bytes]:
    yield b"4,77,88,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off\n"
    yield b"4,78,99,-;NVRM: Xid (PCI:0000:3b:00.0 GPU-I:01): 31, pid=4242, name=python, Ch 00000010\n a=b"


TARGETS = (
    Target(
        "process",
        _process_seeds,
        parse_process,
        (),
        (b"\n==cgroup==\n", b"\n==maps==\n", b":", b" - "),
    ),
    Target(
        "command_line",
        _command_line_seeds,
        parse_command_line,
        (),
        (b"token=", b"://", b"@", b"\0--", b"'"),
    ),
    Target("process_context", _process_context_seeds, parse_process_context, (), (b"OTEL_CTX",)),
    Target(
        "preload_memory",
        _preload_seeds,
        parse_preload,
        (PreloadError,),
        (struct.pack("<Q", os.getpid()),),
    ),
    Target(
        "resource_texts",
        lambda: [b"a=b,c=%41%20,d=e", b"STEP=1\0rank=2\0"],
        parse_resource_texts,
        (),
        (b"%", b"="),
    ),
    Target("kernel_log", _kernel_log_seeds, parse_kernel_log, (), (b"pid=", b", name=")),
)
