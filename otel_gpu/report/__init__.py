"""The report on a capture, for people and for programs."""
