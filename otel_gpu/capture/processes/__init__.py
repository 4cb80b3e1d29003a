"""Which processes are watched, and what is read of each."""
