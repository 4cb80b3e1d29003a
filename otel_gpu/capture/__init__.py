"""Yields records: live from the kernel, or from a recording."""
