"""Metrics from readings, and their export."""
