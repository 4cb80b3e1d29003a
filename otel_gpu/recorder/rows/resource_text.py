"""Resources that threads waited for as JSON text in rows, cached because few are different."""

import functools

from otel_gpu.enrich.identity.identities import Resource
from otel_gpu.enrich.waits.resource_table import resource_of
from otel_gpu.recorder.storable_text import to_json
from otel_gpu.wire.bodies import RESOURCE

_REMEMBERED = 1024


@functools.lru_cache(maxsize=_REMEMBERED)
def resource_text(resource: Resource) -> str | None:
    """Encode a resource for a row; None: it is too large."""
    # In the form of a record's body, which is validated when read back. Its id has no meaning here.
    return to_json({"resource": 1, **resource._asdict()})


@functools.lru_cache(maxsize=_REMEMBERED)
def read_resource(text: str | None) -> Resource | None:
    """Decode the resource of a row; None: there is none, or it is invalid."""
    if text is None:
        return None
    try:
        return resource_of(RESOURCE.parse(text.encode()))
    except ValueError:
        return None
