"""
Resources: the observed process, or the agent itself.

The SDK's ``Resource.create`` would add the agent's own name, instance id and
``OTEL_RESOURCE_ATTRIBUTES`` to everything, so Resources are built here. The agent's
``OTEL_RESOURCE_ATTRIBUTES`` describe the place (a cluster, a zone) and apply to every process on
it, except those that name one service.
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
from otel_gpu.limits.recent import Fifo
from otel_gpu.wire.bodies import AgentFacts, HostFacts

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
    # Bounded.

    def __init__(self, make: Callable[[Program], _Made]) -> None:
        self._make = make
        self._kept: Fifo[Program, _Made] = Fifo(_MAX_CACHED, cache="resources")

    def of(self, program: Program) -> _Made:
        made = self._kept.get(program)
        if made is None:
            made = self._kept[program] = self._make(program)
        return made

    def forget(self, program: Program) -> None:
        self._kept.pop(program, None)


class ProcessResources(_ByProgram[ObservedResource]):
    """The Resource of each program: the place's attributes, then its own."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        place = place_attributes(environ)
        super().__init__(lambda program: ObservedResource({**place, **program.attributes}))


class Origins(_ByProgram[Mapping[str, Origin]]):
    """
    The origins of each program's spans, by scope; ``version`` is that of the agent that saw them.
    """

    def __init__(self, version: str, resources: ProcessResources) -> None:
        scopes = [scope(name, version) for name in _SCOPES]
        super().__init__(
            lambda program: {s.name: Origin(resources.of(program), s, program) for s in scopes}
        )
        self._resources = resources

    def forget(self, program: Program) -> None:
        """Release a program that ended, and its Resource."""
        super().forget(program)
        self._resources.forget(program)


def agent_resource(capture: CaptureActivity, environ: Mapping[str, str]) -> ObservedResource:
    """Return the Resource of the agent that made a capture."""
    agent: AgentFacts = capture.info.get("agent", {})
    host: HostFacts = capture.info.get("host", {})
    attributes: dict[str, object] = {
        "service.name": "otel-gpu",
        "service.version": capture_version(capture),
        # The same for every replay of a recording, as the spans' ids are.
        "service.instance.id": str(uuid.UUID(bytes=capture.seed * 2, version=4)),
    }
    if pid := agent.get("pid"):
        attributes["process.pid"] = pid
    known = (
        ("host.name", host.get("name")),
        ("host.id", host.get("id")),
        ("host.arch", host.get("arch")),
    )
    attributes |= {name: value for name, value in known if value}
    return ObservedResource({**place_attributes(environ), **attributes})


def capture_version(capture: CaptureActivity) -> str:
    """Return the version of the agent that saw what is exported."""
    return str(capture.info.get("agent", {}).get("version") or __version__)


def scope(name: str, version: str) -> InstrumentationScope:
    """Return one of otel-gpu's instrumentation scopes."""
    return InstrumentationScope(name, version, semconv.SCHEMA_URL)


def place_attributes(environ: Mapping[str, str]) -> dict[str, str]:
    """
    Return the attributes of ``OTEL_RESOURCE_ATTRIBUTES`` that describe the place, not the agent.
    """
    attributes = {}
    for pair in filter(str.strip, environ.get(OTEL_RESOURCE_ATTRIBUTES, "").split(",")):
        key, separator, value = (part.strip() for part in pair.partition("="))
        if not separator or not key:
            _logger.warning("%s: %r is not key=value", OTEL_RESOURCE_ATTRIBUTES, pair)
        elif key not in _NAMES_ONE_SERVICE and not key.startswith(_NAMES_ONE_PROCESS):
            attributes[key] = unquote(value)
    return attributes
