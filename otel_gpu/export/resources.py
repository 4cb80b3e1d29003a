"""
Who the telemetry is about: the observed process, or the agent itself.

The SDK's ``Resource.create`` would stamp the agent's own name, instance id and
``OTEL_RESOURCE_ATTRIBUTES`` on everything, so Resources are built by hand here. What
the operator put into the agent's ``OTEL_RESOURCE_ATTRIBUTES`` (a cluster, a zone) is
about the place and holds for every process on it; what names one service does not.
"""

import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import unquote

from opentelemetry.sdk.environment_variables import OTEL_RESOURCE_ATTRIBUTES
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_gpu import __version__
from otel_gpu.enrich.activities import CaptureActivity
from otel_gpu.enrich.identity.identities import Program
from otel_gpu.export import semconv
from otel_gpu.export.spans.finished import Origin
from otel_gpu.limits.caches import CACHES

_logger = logging.getLogger(__name__)

_NAMES_ONE_SERVICE = ("service.name", "service.instance.id")
_NAMES_ONE_PROCESS = "process."
_SCOPES = (
    semconv.SCOPE_DEVICE,
    semconv.SCOPE_CUDA,
    semconv.SCOPE_SCHED,
    semconv.SCOPE_PROCESS,
    semconv.SCOPE_CAUSAL,
    semconv.SCOPE_CPU,
    semconv.SCOPE_HARDWARE,
    semconv.SCOPE_NCCL,
    semconv.SCOPE_VERBS,
    semconv.SCOPE_NVTX,
)
_MAX_CACHED = 256


class ObservedResource(Resource):
    """A Resource that hashes once: encoders group by it, and the SDK's hash is a JSON dump."""

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        super().__init__(dict(attributes), semconv.SCHEMA_URL)
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or super().__eq__(other)


_Made = TypeVar("_Made")


class _ByProgram(Generic[_Made]):
    """Makes something of each process image once, and keeps the latest of them."""

    def __init__(self, make: Callable[[Program], _Made]) -> None:
        self._make = make
        self._kept: dict[Program, _Made] = {}
        CACHES.register_ordered("resources", self, "_kept")

    def of(self, image: Program) -> _Made:
        """Return what belongs to an image."""
        made = self._kept.get(image)
        if made is None:
            if len(self._kept) >= _MAX_CACHED:
                del self._kept[next(iter(self._kept))]
            made = self._kept[image] = self._make(image)
        return made

    def forget(self, image: Program) -> None:
        """Let go of an image that ended."""
        self._kept.pop(image, None)


class ProcessResources(_ByProgram[ObservedResource]):
    """The Resource of each process image: the place's attributes, then its own."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        place = place_attributes(environ)
        super().__init__(lambda image: ObservedResource({**place, **image.attributes}))


class Origins(_ByProgram[Mapping[str, Origin]]):
    """The origins of each image's spans by scope; ``version`` is of the agent that saw them."""

    def __init__(self, version: str, resources: ProcessResources) -> None:
        scopes = [scope(name, version) for name in _SCOPES]
        super().__init__(
            lambda image: {s.name: Origin(resources.of(image), s, image) for s in scopes}
        )
        self._resources = resources

    def forget(self, image: Program) -> None:
        """Let go of an image that ended, and of its Resource."""
        super().forget(image)
        self._resources.forget(image)


def agent_resource(capture: CaptureActivity, environ: Mapping[str, str]) -> ObservedResource:
    """Return the Resource of the agent that made a capture."""
    agent = capture.info.get("agent", {})
    host = capture.info.get("host", {})
    attributes: dict[str, Any] = {
        "service.name": "otel-gpu",
        "service.version": capture_version(capture),
        # The same for every replay of a recording, as the spans' ids are.
        "service.instance.id": str(uuid.UUID(bytes=capture.seed * 2, version=4)),
    }
    if pid := agent.get("pid"):
        attributes["process.pid"] = pid
    for key, name in (("name", "host.name"), ("id", "host.id"), ("arch", "host.arch")):
        if host.get(key):
            attributes[name] = host[key]
    return ObservedResource({**place_attributes(environ), **attributes})


def capture_version(capture: CaptureActivity) -> str:
    """Return the version of the agent that saw what is exported."""
    return str(capture.info.get("agent", {}).get("version") or __version__)


def scope(name: str, version: str) -> InstrumentationScope:
    """Return an instrumentation scope of ours."""
    return InstrumentationScope(name, version, semconv.SCHEMA_URL)


def place_attributes(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what ``OTEL_RESOURCE_ATTRIBUTES`` says about the place, and not about the agent."""
    attributes = {}
    for pair in filter(str.strip, environ.get(OTEL_RESOURCE_ATTRIBUTES, "").split(",")):
        key, separator, value = (part.strip() for part in pair.partition("="))
        if not separator or not key:
            _logger.warning("%s: %r is not key=value", OTEL_RESOURCE_ATTRIBUTES, pair)
        elif key not in _NAMES_ONE_SERVICE and not key.startswith(_NAMES_ONE_PROCESS):
            attributes[key] = unquote(value)
    return attributes
