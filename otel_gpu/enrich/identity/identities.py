"""What activities are about: processes, devices, stacks, culprits, resources."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from otel_gpu.formatting.field_types import Signed
from otel_gpu.limits.caches import shared
from otel_gpu.wire.bodies import ResourceKind
from otel_gpu.wire.frames import Frame, PythonStatus, UnwindMethod


@shared
@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """
    One program that ran under one pid; compared by identity.

    Attributes:
        pid: In the agent's pid namespace.
        program_ktime_ns: With ``pid``, the key of this program everywhere.
        comm: The kernel's 15-character name; always known.
        attributes: OTel resource attributes of the process, in emission order: ``service.name``,
          ``service.instance.id``, ``process.*``, ``container.id``, ``k8s.*``, ``host.*``.
        start_unix_ns: When the program began.
    """

    pid: int
    program_ktime_ns: int
    comm: str
    start_unix_ns: int
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def service_name(self) -> str:
        """The name under which backends list this process."""
        return str(self.attributes["service.name"])

    @property
    def user(self) -> str:
        """The name of its user, or the number; empty: not known."""
        return str(self.attributes.get("process.owner", ""))


ProcessKey = tuple[int, int]
"""A program: its pid, and when it began by the kernel's clock."""


def key_of(process: Program) -> ProcessKey:
    """Return the key of a program, which is unique also among programs of the same pid."""
    return process.pid, process.program_ktime_ns


class DeviceIdentity(NamedTuple):
    """A CUDA device as OBI names it; None: not observed."""

    index: int  # type: ignore[assignment] # OBI's word; this tuple is never searched
    uuid: str | None
    model: str | None


class CallStack(NamedTuple):
    """
    Where a thread was in its program: Python and native frames, innermost first.

    Attributes:
        id: Of its content: equal stacks have equal ids, everywhere.
        frames: A frame of kind ``cut`` stands for others that were left out.
        complete: Whether nothing is missing at the outer end.
        place: The innermost frame of the program's own code; None: not known.
    """

    id: int
    frames: tuple[Frame, ...]
    complete: bool
    native: UnwindMethod
    python: PythonStatus
    place: Frame | None


class Who(NamedTuple):
    """
    The names of a process or a thread; empty if not known.

    Attributes:
        pid: The process.
        tid: The thread; 0: the process.
        comm: The kernel's name.
        command: The command line, without what looks like a secret.
        container: The id of its container.
        pod: The uid of its Kubernetes pod.
        unit: The systemd unit that it belongs to.
        owner: The name of its user.
        function: Of a thread: what it runs, if it has no name of its own.
    """

    pid: Signed
    tid: Signed = 0
    comm: str = ""
    command: str = ""
    container: str = ""
    pod: str = ""
    unit: str = ""
    owner: str = ""
    function: str = ""


class Resource(NamedTuple):
    """
    What a thread waited for, in a system call about a file descriptor.

    Attributes:
        name: A path, or an address and port: of the peer, or of the listening end; of a collective
            what was waited for, in words. Empty: not known, or many, such as all files of a file
            system.
        file_system: Its type (``ext4``, ``nfs4``, ``fuse.sshfs``, ``overlay``); else empty.
        mount: Where the process sees that file system; else empty.
        is_remote: Whether another host, or network namespace, is behind it.
        is_incoming: Whether it listens, or was connected from the other end.
        peers: The watched processes that have the other end of a pipe or of a socket of this host.
        source: What is mounted: a device, or ``host:/folder``; else empty.
    """

    kind: ResourceKind
    name: str
    file_system: str = ""
    mount: str = ""
    is_remote: bool = False
    is_incoming: bool = False
    peers: tuple[Signed, ...] = ()
    source: str = ""

    @property
    def is_network(self) -> bool:
        """Whether it is a connection that this host made to another one."""
        return (
            self.is_remote
            and not self.is_incoming
            and self.kind in (ResourceKind.TCP, ResourceKind.UDP)
        )


class Culprit(NamedTuple):
    """The thread or process that had the CPU, held the lock, or kept another one waiting."""

    pid: Signed
    tid: Signed
    comm: str
