"""Timelines, and windows in detail."""
