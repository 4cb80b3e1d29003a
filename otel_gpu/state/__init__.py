"""The state of a capture: readings in, and what was added to them between two times out."""
