"""Interpreters of CPython, read from outside."""
