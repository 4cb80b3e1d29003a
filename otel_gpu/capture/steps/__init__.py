"""Step detection: finds the period of the calls that a thread repeats."""
