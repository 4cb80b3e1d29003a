"""
OpenTelemetry for CUDA: every call counted, every slow one accounted for.

``docs/architecture.md`` is the walk through the package.
"""

__version__ = "0.1.0"
