"""What keeps the agent small and fair: bounded caches, and shares of a bound for each program and user."""
