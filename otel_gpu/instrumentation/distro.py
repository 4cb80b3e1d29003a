"""
The distribution for ``opentelemetry-instrument python train.py``.

It needs the extra ``instrument``. It does not change settings of the user. Without an OpenTelemetry
SDK or an agent the program runs as before.
"""

import os
from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.instrumentation.distro import BaseDistro  # type: ignore[attr-defined] # untyped
from opentelemetry.sdk._configuration import _OTelSDKConfigurator
from opentelemetry.sdk.resources import OTELResourceDetector
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from otel_gpu.instrumentation.context import PublishedContext
from otel_gpu.instrumentation.process_context import ProcessContext
from otel_gpu.instrumentation.published import publish_context, published_context
from otel_gpu.instrumentation.thread_context import load_publisher
from otel_gpu.procfs.jobs import describe_job

DEFAULTS: Final[Mapping[str, str]] = {
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_METRICS_EXPORTER": "otlp",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    "OTEL_PYTHON_CONFIGURATOR": "otel_gpu",
}
"""Variables to set unless the user set them."""


class OtelGpuDistro(BaseDistro):  # type: ignore[misc] # untyped
    """Entry point ``otel_gpu`` of ``opentelemetry_distro``."""

    def _configure(self, **_: object) -> None:
        for name, value in DEFAULTS.items():
            os.environ.setdefault(name, value)
        publish_context()


class OtelGpuConfigurator(_OTelSDKConfigurator):
    """
    Entry point ``otel_gpu`` of ``opentelemetry_configurator``.

    It sets up the SDK like OpenTelemetry's configurator. The resource also has the rank and the job of
    this process, and readers outside can see the resource and the span of each thread.
    """

    def _configure(self, **kwargs: Any) -> None:  # noqa: ANN401 - as its base has it
        # These override OTEL_RESOURCE_ATTRIBUTES, so attributes that the user set are left out.
        users = OTELResourceDetector().detect().attributes
        job = {name: value for name, value in describe_job(os.environ) if name not in users}
        job |= kwargs.pop("resource_attributes", None) or {}
        super()._configure(resource_attributes=job, **kwargs)  # type: ignore[no-untyped-call]
        provider = trace.get_tracer_provider()
        if isinstance(provider, TracerProvider):
            publish_provider(provider)


def publish_provider(provider: TracerProvider) -> None:
    """Publish the resource of a provider, and stop publishing each of its spans when it ends."""
    context = published_context()
    is_published = context is not None and load_publisher() is not None
    # A function, because the provider has another resource in a child.
    ProcessContext(lambda: provider.resource.attributes, is_thread_context=is_published)
    if context is not None:
        provider.add_span_processor(_Ends(context))


class _Ends(SpanProcessor):
    # A span can end while it is current.
    def __init__(self, context: PublishedContext) -> None:
        self._context = context

    def on_end(self, span: ReadableSpan) -> None:
        identity = span.get_span_context()
        if identity is not None:
            self._context.end(identity.trace_id, identity.span_id)
