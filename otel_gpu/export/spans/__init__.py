"""Spans from activities, causal chains and device traces."""
