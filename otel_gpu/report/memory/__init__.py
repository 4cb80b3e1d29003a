"""Device memory in a report."""
