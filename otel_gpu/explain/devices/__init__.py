"""Causes on devices and network adapters."""
