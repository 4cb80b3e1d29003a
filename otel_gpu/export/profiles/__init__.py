"""Samples as profiles of OTLP."""
