"""Records become events: bytes become numbers with names."""
