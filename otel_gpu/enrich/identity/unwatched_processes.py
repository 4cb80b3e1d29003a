"""Names of unwatched processes: command, container, pod, systemd unit and user, from /proc."""

import re
from collections.abc import Iterable

from otel_gpu.enrich.identity.attributes import facts_of
from otel_gpu.enrich.identity.containers import choose_cgroup, find_container
from otel_gpu.enrich.identity.identities import Program, Who
from otel_gpu.procfs.redaction import mask_secrets
from otel_gpu.wire.bodies import ProcessFacts

MAX_CHARACTERS = 256
# The deepest one: a service of a user's manager is inside that manager's own.
_UNIT = re.compile(r"[^/]+\.(?:service|scope)(?=/|$)")


def who_of_facts(pid: int, body: ProcessFacts) -> Who:
    """Return the names of a process, from the body of a CULPRIT or PROCESS record."""
    facts = facts_of(body, 0)
    # Masked when it was captured; a recording can come from elsewhere.
    command = _command(mask_secrets(facts.command_args)) or facts.exe or ""
    return _who(pid, facts.comm, command=command, cgroups=facts.cgroups, owner=facts.owner or "")


def who_of(process: Program) -> Who:
    """Return the names of a watched process."""
    attributes = process.attributes
    command = _command(attributes.get("process.command_args", ()))
    who = _who(
        process.pid,
        process.comm,
        command=command or str(attributes.get("process.executable.path", "")),
        cgroups=(str(attributes.get("process.linux.cgroup", "")),),
        owner=process.user,
    )
    return who._replace(
        container=str(attributes.get("container.id", who.container)),
        pod=str(attributes.get("k8s.pod.uid", who.pod)),
    )


def unit_of(cgroup: str) -> str:
    """Return the systemd unit in a line of /proc/PID/cgroup; empty: it names none."""
    path = cgroup.partition(":")[2].partition(":")[2]
    units = _UNIT.findall(path)
    return units[-1][:MAX_CHARACTERS] if units else ""


def _who(pid: int, comm: str, command: str, cgroups: Iterable[str], owner: str) -> Who:
    lines = tuple(cgroups)
    container = find_container(lines)
    return Who(
        pid,
        comm=comm,
        command=command[:MAX_CHARACTERS],
        container=container.container_id or "",
        pod=container.pod_uid or "",
        # The scope of a container has a name for machines, with nothing more than its id.
        unit="" if container.container_id else unit_of(choose_cgroup(lines) or ""),
        owner=owner[:MAX_CHARACTERS],
    )


def _command(arguments: Iterable[str]) -> str:
    return " ".join(arguments)
