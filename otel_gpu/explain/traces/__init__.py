"""Causes of idle devices, from traces of profilers."""
