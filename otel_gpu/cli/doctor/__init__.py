"""Checks of this host and of processes, for ``otel-gpu doctor``."""
