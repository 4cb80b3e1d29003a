"""Spans from activities, causal chains and traces of devices."""
