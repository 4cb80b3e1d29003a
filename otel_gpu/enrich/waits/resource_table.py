"""What threads waited for, by the ids in records."""

from otel_gpu.enrich.identity.identities import Resource
from otel_gpu.enrich.waits.reasons import WaitReason
from otel_gpu.limits.caches import CACHES
from otel_gpu.limits.recent import Recent
from otel_gpu.wire.bodies import ResourceFacts
from otel_gpu.wire.symbol_records import ResourceSeen

MAX_RESOURCES = 16_384
"""Resources kept: at least as many as an agent sends before it repeats one."""
MAX_CHARACTERS = 512
# The kernel's reasons of a wait for a socket.
_SOCKET_REASONS = frozenset({WaitReason.IPC, WaitReason.UNKNOWN})


class ResourceTable:
    """
    The resources of one capture, the latest ones.

    Attributes:
        version: Changes whenever an id can stand for something else.
    """

    def __init__(self) -> None:
        self.version = 0
        self._resources: Recent[int, Resource] = Recent(MAX_RESOURCES)
        # An agent sends a resource once while it assumes that readers keep it, so none is released.
        CACHES.register("wait_resources", self, "_resources")

    def learn(self, event: ResourceSeen) -> Resource:
        """Keep a resource, and return it; the first facts of an id stay."""
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
    """Return the reason of a wait, or a more exact one from its resource."""
    if resource is not None and resource.is_network and reason in _SOCKET_REASONS:
        return WaitReason.NETWORK
    return reason


def resource_of(facts: ResourceFacts) -> Resource:
    """Return the resource in the body of a RESOURCE record."""
    return Resource(
        kind=facts["kind"],
        name=facts.get("name", "")[:MAX_CHARACTERS],
        file_system=facts.get("file_system", "")[:MAX_CHARACTERS],
        mount=facts.get("mount", "")[:MAX_CHARACTERS],
        is_remote=facts.get("is_remote", False),
        is_incoming=facts.get("is_incoming", False),
        peers=tuple(facts.get("peers", ())),
        source=facts.get("source", "")[:MAX_CHARACTERS],
    )
