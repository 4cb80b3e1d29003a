"""Bounds on what the agent holds and does: bounded caches, and shares for each program and user."""
