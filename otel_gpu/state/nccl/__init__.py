"""Communicators of NCCL, and how their ranks compare."""
