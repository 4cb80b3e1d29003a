"""Chooses the functions and instructions that get probes, and places them."""
