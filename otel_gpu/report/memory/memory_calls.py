"""What calls have to do with memory."""

from collections.abc import Mapping
from enum import StrEnum

from otel_gpu import wire
from otel_gpu.wire.probe_table import APIS


class Role(StrEnum):
    """What a call does with memory."""

    ALLOCATE = "allocate"
    FREE = "free"
    HOST_ALLOCATE = "allocate host memory"
    HOST_FREE = "free host memory"


_ROLES: Mapping[int, Role] = {
    wire.FAMILY_ALLOCATE: Role.ALLOCATE,
    wire.FAMILY_FREE: Role.FREE,
    wire.FAMILY_HOST_ALLOCATE: Role.HOST_ALLOCATE,
    wire.FAMILY_HOST_FREE: Role.HOST_FREE,
}
ROLES: Mapping[str, Role] = {api.name: _ROLES[api.family] for api in APIS if api.family in _ROLES}
"""Of APIs that allocate or free."""

ROLE_WORDS: Mapping[Role, str] = {
    Role.ALLOCATE: "allocates on the device",
    Role.FREE: "frees on the device",
    Role.HOST_ALLOCATE: "allocates pinned host memory",
    Role.HOST_FREE: "frees pinned host memory",
}
