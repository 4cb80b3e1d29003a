"""Causes joined to effects, each with its evidence."""
