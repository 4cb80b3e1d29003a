"""Turns activities into OTLP spans, metrics, logs and profiles."""
