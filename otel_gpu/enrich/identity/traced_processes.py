"""The process that recorded a trace of its devices, from the file."""

from collections import Counter
from hashlib import blake2b
from uuid import NAMESPACE_DNS, uuid5

from otel_gpu.enrich.identity.identities import Program
from otel_gpu.enrich.identity.services import UNKNOWN_SERVICE
from otel_gpu.procfs.jobs import RANK, WORLD_SIZE
from otel_gpu.wire.device_activity import DeviceTrace

_INSTANCES = uuid5(NAMESPACE_DNS, "otel_gpu/trace")
_MAX_PID = 1 << 31


def traced_process(
    trace: DeviceTrace, start_unix_ns: int, seed: bytes, service_name: str
) -> Program:
    """
    Return the process that recorded a trace.

    Args:
        trace: The trace.
        start_unix_ns: Its start.
        seed: ``ids.capture_seed`` of the import.
        service_name: The user's name for it, as files contain none; empty: none.
    """
    identity = f"{seed.hex()}/{trace.source}"
    pids = Counter(thread.pid for thread in trace.threads if 0 < thread.pid < _MAX_PID)
    pid = max(pids, key=pids.__getitem__, default=0)
    unknown = f"{UNKNOWN_SERVICE}:{trace.program}" if trace.program else UNKNOWN_SERVICE
    attributes: dict[str, object] = {
        "service.name": service_name or unknown,
        "service.instance.id": str(uuid5(_INSTANCES, identity)),
        "process.pid": pid or None,
        "process.executable.name": trace.program,
        "host.name": trace.host_name,
        RANK: trace.rank,
        WORLD_SIZE: trace.ranks,
    }
    known = {name: value for name, value in attributes.items() if value not in (None, "")}
    # Ranks of several hosts can have the same number.
    program_ktime_ns = int.from_bytes(blake2b(identity.encode(), digest_size=7).digest())
    return Program(
        pid, program_ktime_ns, comm=trace.program, start_unix_ns=start_unix_ns, attributes=known
    )
