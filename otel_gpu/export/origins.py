"""Where spans come from: each process image's Resource joined with each scope, made once."""

from otel_gpu.enrich.activities import ProcessImage
from otel_gpu.export import resources, semconv
from otel_gpu.export.finished import Origin

_MAX_CACHED = 256


class Origins:
    """
    Gives spans their origins, and keeps the latest of them.

    Args:
        version: Of the agent that saw the activities; the scopes carry it.
        processes: Gives each process image its Resource.
    """

    def __init__(self, version: str, processes: resources.Resources) -> None:
        self._processes = processes
        self._scopes = {
            name: resources.scope(name, version)
            for name in (
                semconv.SCOPE_CUDA,
                semconv.SCOPE_SCHED,
                semconv.SCOPE_PROCESS,
                semconv.SCOPE_CAUSAL,
            )
        }
        self._origins: dict[tuple[ProcessImage, str], Origin] = {}

    def of(self, image: ProcessImage, scope: str) -> Origin:
        """Return the one origin of an image's spans of one scope."""
        origin = self._origins.get((image, scope))
        if origin is None:
            if len(self._origins) >= _MAX_CACHED:
                del self._origins[next(iter(self._origins))]
            origin = Origin(self._processes.of(image), self._scopes[scope])
            self._origins[image, scope] = origin
        return origin

    def forget(self, image: ProcessImage) -> None:
        """Let go of an image that ended."""
        for scope in self._scopes:
            self._origins.pop((image, scope), None)
        self._processes.forget(image)
