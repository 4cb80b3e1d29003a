"""Measures what otel_gpu costs, each figure against a floor of the same run."""
