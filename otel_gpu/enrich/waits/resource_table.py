"""What threads waited for, by the ids that records name it by."""

from collections.abc import Mapping
from typing import Any

from otel_gpu.enrich.identity.identities import Resource
from otel_gpu.enrich.waits.reasons import WaitReason
from otel_gpu.limits.recent import Recent
from otel_gpu.wire.symbol_records import ResourceSeen

MAX_RESOURCES = 16_384
"""Resources remembered: at least as many as an agent tells before it repeats itself."""
MAX_CHARACTERS = 512
# What a wait for a socket looks like to the kernel.
_SOCKET_REASONS = frozenset({WaitReason.IPC, WaitReason.UNKNOWN})


class ResourceTable:
    """
    The resources of one capture, the latest named of them.

    Attributes:
        version: Another number once an id may stand for something else than it did.
    """

    def __init__(self) -> None:
        self.version = 0
        self._resources: Recent[int, Resource] = Recent(MAX_RESOURCES)

    def learn(self, event: ResourceSeen) -> Resource:
        """Remember a resource, and return it: what it was first said to be, it stays."""
        found = self._resources.use(event.resource)
        if found is None:
            found = self._resources[event.resource] = resource_of(event.info)
            self.version += 1
        return found

    def find(self, resource: int) -> Resource | None:
        """Return the resource with an id; None for 0, and for one that was not recorded."""
        found = self._resources.get(resource) if resource else None
        if found is not None:
            self._resources.move_to_end(resource)
        return found

    def clear(self) -> None:
        """Forget everything: another capture begins."""
        self._resources.clear()
        self.version += 1


def reason_for(reason: WaitReason, resource: Resource | None) -> WaitReason:
    """Return why a thread waited, or the more exact reason that what it waited for tells."""
    if resource is not None and resource.is_network and reason in _SOCKET_REASONS:
        return WaitReason.NETWORK
    return reason


def resource_of(facts: Mapping[str, Any]) -> Resource:
    """Return what the body of a RESOURCE record says, which decode has checked."""
    return Resource(
        kind=facts.get("kind", "other"),
        name=facts.get("name", "")[:MAX_CHARACTERS],
        file_system=facts.get("file_system", "")[:MAX_CHARACTERS],
        mount=facts.get("mount", "")[:MAX_CHARACTERS],
        is_remote=facts.get("is_remote", False),
        is_incoming=facts.get("is_incoming", False),
        peers=tuple(facts.get("peers", ())),
        source=facts.get("source", "")[:MAX_CHARACTERS],
    )
