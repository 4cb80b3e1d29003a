"""Which ranks other ranks wait for."""
