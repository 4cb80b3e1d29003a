"""Communicators and ranks in a report."""
