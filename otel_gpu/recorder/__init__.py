"""The flight recorder: activities, causal chains and incidents in one SQLite file."""
