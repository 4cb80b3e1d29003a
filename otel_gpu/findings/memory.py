"""What calls have to do with memory, in words."""

from collections.abc import Mapping

from otel_gpu import wire
from otel_gpu.probe_table import APIS

_WORDS: Mapping[int, str] = {
    wire.FAMILY_ALLOCATE: "allocates on the device",
    wire.FAMILY_FREE: "frees on the device",
    wire.FAMILY_HOST_ALLOCATE: "allocates pinned host memory",
    wire.FAMILY_HOST_FREE: "frees pinned host memory",
}
ROLES: Mapping[str, str] = {api.name: _WORDS[api.family] for api in APIS if api.family in _WORDS}
"""What a call does, by its API; of APIs that allocate or free."""
