"""Roles of APIs in memory management."""

from collections.abc import Mapping
from enum import StrEnum

from otel_gpu import wire
from otel_gpu.wire.probe_table import APIS


class AllocationRole(StrEnum):
    """The role of a call."""

    ALLOCATE = "allocate"
    FREE = "free"
    HOST_ALLOCATE = "allocate host memory"
    HOST_FREE = "free host memory"


_ROLES: Mapping[int, AllocationRole] = {
    wire.FAMILY_ALLOCATE: AllocationRole.ALLOCATE,
    wire.FAMILY_FREE: AllocationRole.FREE,
    wire.FAMILY_HOST_ALLOCATE: AllocationRole.HOST_ALLOCATE,
    wire.FAMILY_HOST_FREE: AllocationRole.HOST_FREE,
}
ROLES: Mapping[str, AllocationRole] = {
    api.name: _ROLES[api.family] for api in APIS if api.family in _ROLES
}
"""Roles of APIs that allocate or free."""

ROLE_WORDS: Mapping[AllocationRole, str] = {
    AllocationRole.ALLOCATE: "allocates on the device",
    AllocationRole.FREE: "frees on the device",
    AllocationRole.HOST_ALLOCATE: "allocates pinned host memory",
    AllocationRole.HOST_FREE: "frees pinned host memory",
}
