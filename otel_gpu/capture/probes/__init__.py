"""Which functions of which files have probes, and where in a function."""
