"""What threads waited for, as text in the rows of their stalls; most of them share a few."""

import functools

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import Resource
from otel_gpu.enrich.waits.resource_table import resource_of
from otel_gpu.recorder.text import to_json
from otel_gpu.wire.bodies import parse_body

_REMEMBERED = 1024


@functools.lru_cache(maxsize=_REMEMBERED)
def resource_text(resource: Resource) -> str | None:
    """Return a resource as a row says it."""
    # As the body of a record, which is checked when it is read back. Its id means nothing here.
    return to_json({"resource": 1, **resource._asdict()})


@functools.lru_cache(maxsize=_REMEMBERED)
def read_resource(text: str | None) -> Resource | None:
    """Return the resource of a row; None: it says none, or nonsense."""
    if text is None:
        return None
    try:
        return resource_of(parse_body(wire.RECORD_RESOURCE, text.encode()))
    except (TypeError, ValueError):
        return None
