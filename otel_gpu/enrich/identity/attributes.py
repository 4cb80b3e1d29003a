"""The resource attributes of a process, from /proc and from the process itself."""

# Which source counts
# -------------------
#
# A process describes itself in its OpenTelemetry context and its environment, and the agent
# observes it from outside. Only the process knows its service, so its own name counts. For
# everything else the observed value wins: inside a container the process has another pid, another
# host name and another executable path, and none of those exist on the host. What cannot be
# observed (deployment.environment.name, k8s.pod.name) is copied, and listed in
# otel_gpu.resource.claimed, as any process can claim anything there. Container and pod come from
# the kernel alone: a process outside them cannot claim one, and where its user can name cgroups,
# they count as claimed. Attributes of the agent itself, and telemetry.sdk.* (which SDK made the
# telemetry), are not copied.

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import NAMESPACE_DNS, uuid5

from otel_gpu.enrich.identity.containers import choose_cgroup, find_container
from otel_gpu.enrich.identity.services import name_service, parse_resource_attributes
from otel_gpu.limits.caches import remembered
from otel_gpu.procfs.jobs import describe_job
from otel_gpu.procfs.process_facts import ALLOCATOR_VARIABLES
from otel_gpu.procfs.redaction import mask_secrets
from otel_gpu.wire.bodies import CaptureFacts, HostFacts, ProcessFacts

MAX_ARGS = 64
MAX_CGROUPS = 32
MAX_CHARACTERS = 4096
MAX_KEY_CHARACTERS = 256
MAX_ATTRIBUTES = 128

VARIABLE_PREFIX = "process.environment_variable."
_INSTANCES = uuid5(NAMESPACE_DNS, "otel_gpu")
CLAIMED = "otel_gpu.resource.claimed"
_OF_CONTAINERS = frozenset({"container.id", "k8s.pod.uid"})
_NOT_TAKEN_OVER = (
    *("telemetry.", "otel_gpu.agent.", CLAIMED),
    *(*_OF_CONTAINERS, "process.owner"),
)
# The semantic conventions' names of uname(2)'s values.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_LAST_UNIX_NS = 253_402_300_799 * 1_000_000_000  # the end of the year 9999


class Facts(NamedTuple):
    """
    What is known of one program, checked and bounded; None or empty if unknown.

    Attributes:
        start_boot_ns: With the pid, unique to the process.
        exec_ktime_ns: When an exec that was seen began this program; 0 for none.
        created_unix_ns: When the process (not this program) began.
    """

    comm: str = ""
    start_boot_ns: int | None = None
    exec_ktime_ns: int = 0
    created_unix_ns: int | None = None
    ppid: int | None = None
    vpid: int | None = None
    exe: str | None = None
    command_args: tuple[str, ...] = ()
    owner: str | None = None
    cgroups: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    context: Mapping[str, object] = {}
    container_id: str | None = None


class Host(NamedTuple):
    """The host of a capture: its boot, and the attributes of all of its processes."""

    boot_id: str = ""
    attributes: Mapping[str, str] = {"os.type": "linux"}


def facts_of(body: ProcessFacts, unix_minus_ktime_ns: int) -> Facts:
    """
    Return bounded facts from the body of a PROCESS record.

    Args:
        body: As it was decoded.
        unix_minus_ktime_ns: The clocks' difference when the facts were read.
    """
    start_boot_ns = _natural(body.get("start_boot_ns"))
    created_unix_ns = None
    if start_boot_ns is not None:
        boot_offset_ns = _natural(body.get("boot_offset_ns")) or 0
        created_unix_ns = start_boot_ns - boot_offset_ns + unix_minus_ktime_ns
    return Facts(
        comm=_text(body.get("comm")) or "",
        start_boot_ns=start_boot_ns,
        created_unix_ns=created_unix_ns,
        ppid=_natural(body.get("ppid")),
        vpid=_natural(body.get("vpid")),
        exe=_text(body.get("exe")),
        command_args=_texts(body.get("command_args", ()), MAX_ARGS),
        owner=_text(body.get("owner")),
        cgroups=_texts(body.get("cgroups", ()), MAX_CGROUPS),
        environment={
            key: value for key, value in body.get("env", {}).items() if len(value) <= MAX_CHARACTERS
        },
        context=_plain_attributes(body.get("otel_context") or {}),
        container_id=_text(body.get("mountinfo_container_id")),
    )


def host_of(info: CaptureFacts) -> Host:
    """Return the host from the body of a CAPTURE record."""
    host: HostFacts = info.get("host", {})
    arch = _text(host.get("arch"))
    attributes = {
        "host.name": _text(host.get("name")),
        "host.id": _text(host.get("id")),
        "host.arch": _ARCHITECTURES.get(arch, arch) if arch else None,
        "os.type": "linux",
    }
    known = {key: value for key, value in attributes.items() if value}
    return Host(_text(host.get("boot_id")) or "", known)


def describe(pid: int, program_ktime_ns: int, facts: Facts, host: Host) -> dict[str, object]:
    """
    Return the resource attributes of a program, ``service.*`` first.

    The same arguments give the same attributes, on every host and in every replay.
    """
    listed = parse_resource_attributes(facts.environment.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    reported = {**_plain_attributes(listed), **facts.context}
    configured = facts.environment.get("OTEL_SERVICE_NAME", "").strip()
    if configured and "service.name" not in facts.context:
        reported["service.name"] = configured[:MAX_CHARACTERS]
    attributes: dict[str, object] = {
        "service.name": name_service(
            context=facts.context,
            environment=facts.environment,
            exe=facts.exe,
            command_args=facts.command_args,
            comm=facts.comm,
        )[:MAX_CHARACTERS],
        "service.instance.id": reported.get("service.instance.id")
        or _instance_id(pid, program_ktime_ns, facts=facts, host=host),
    }
    # Recordings of other tools can lack pids.
    if pid >= 0:
        attributes["process.pid"] = pid
    attributes.update(_observe_process(pid, facts))
    attributes.update(_observe_place(facts))
    attributes.update(host.attributes)
    for key, value in reported.items():
        if not key.startswith(_NOT_TAKEN_OVER):
            attributes.setdefault(key, value)
    claimed = {key for key in reported if attributes.get(key) == reported[key]}
    if find_container(facts.cgroups).is_claimed:
        claimed |= _OF_CONTAINERS & attributes.keys()
    if claimed:
        attributes[CLAIMED] = tuple(sorted(claimed))
    return attributes


def _observe_process(pid: int, facts: Facts) -> Iterable[tuple[str, object]]:
    if facts.ppid is not None:
        yield "process.parent_pid", facts.ppid
    if facts.vpid not in (None, pid):
        yield "process.vpid", facts.vpid
    if facts.exe:
        yield "process.executable.name", facts.exe.rpartition("/")[2] or facts.exe
        yield "process.executable.path", facts.exe
    elif facts.comm and pid >= 0:
        yield "process.executable.name", facts.comm
    if facts.command_args:
        # Masked when it was captured; a recording can come from elsewhere.
        masked = _masked(facts.command_args)
        yield "process.command", masked[0]
        yield "process.command_args", masked
    if facts.owner:
        yield "process.owner", facts.owner
    for name in ALLOCATOR_VARIABLES:
        if name in facts.environment:
            yield f"{VARIABLE_PREFIX}{name}", facts.environment[name]
    yield from describe_job(facts.environment)
    created_unix_ns = facts.created_unix_ns
    if created_unix_ns is not None and 0 <= created_unix_ns <= _LAST_UNIX_NS:
        yield "process.creation.time", _iso_8601(created_unix_ns)


@remembered("masked_commands", most=64, entry_bytes=4_096)
def _masked(command_args: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(mask_secrets(command_args))


def _observe_place(facts: Facts) -> Iterable[tuple[str, str]]:
    cgroup = choose_cgroup(facts.cgroups)
    if cgroup:
        yield "process.linux.cgroup", cgroup
    container = find_container(facts.cgroups)
    container_id = container.container_id or facts.container_id
    if container_id:
        yield "container.id", container_id
    if container.pod_uid:
        yield "k8s.pod.uid", container.pod_uid


def _instance_id(pid: int, program_ktime_ns: int, facts: Facts, host: Host) -> str:
    # The start time outlives a restart of the agent; the program's ktime can change.
    start_ns = program_ktime_ns if facts.start_boot_ns is None else facts.start_boot_ns
    name = f"{host.boot_id}/{pid}/{start_ns}"
    if facts.exec_ktime_ns:
        name += f"/{facts.exec_ktime_ns}"
    return str(uuid5(_INSTANCES, name))


def _iso_8601(unix_ns: int) -> str:
    # Milliseconds: /proc counts start times in hundredths of a second.
    seconds, rest_ns = divmod(unix_ns, 1_000_000_000)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest_ns // 1_000_000:03d}Z"


def _plain_attributes(attributes: Mapping[str, object]) -> dict[str, object]:
    # Only values that OTLP can carry, within bounds.
    plain: dict[str, object] = {}
    for key, value in attributes.items():
        if len(plain) >= MAX_ATTRIBUTES:
            break
        if not 0 < len(key) <= MAX_KEY_CHARACTERS:
            continue
        bounded = _plain_value(value)
        if bounded is None and isinstance(value, list | tuple):
            items = [_plain_value(item) for item in value[:MAX_ARGS]]
            kinds = {type(item) for item in items}
            if len(kinds) == 1 and None not in items:
                bounded = tuple(items)
        if bounded is not None:
            plain[key] = bounded
    return plain


def _plain_value(value: object) -> object:
    match value:
        case str():
            return value[:MAX_CHARACTERS]
        case bool() | float():
            return value
        case int() if -(1 << 63) <= value < 1 << 63:
            return value
        case _:
            return None


def _text(value: str | None) -> str | None:
    return value[:MAX_CHARACTERS] if value else None


def _natural(value: int | None) -> int | None:
    return value if value is not None and value >= 0 else None


def _texts(values: Sequence[str], limit: int) -> tuple[str, ...]:
    return tuple(value[:MAX_CHARACTERS] for value in values[:limit])
