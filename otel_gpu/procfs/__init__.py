"""Reads processes through /proc: mappings, identity, memory, and what they publish."""
