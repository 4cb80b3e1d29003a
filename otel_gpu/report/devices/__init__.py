"""Device time in a report, and its advice."""
