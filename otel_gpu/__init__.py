"""
OpenTelemetry for CUDA: counts all calls, and explains slow ones.

``docs/internals/architecture.md`` describes the packages.
"""

__version__ = "0.1.0"
