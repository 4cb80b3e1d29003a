"""Walks from a frame to its caller, by call frame information."""
