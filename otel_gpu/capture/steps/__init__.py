"""Step detection: the period of the calls that a thread repeats."""
