"""
OpenTelemetry for CUDA: every call counted, every slow one accounted for.

``docs/internals/architecture.md`` says which package does what.
"""

__version__ = "0.1.0"
