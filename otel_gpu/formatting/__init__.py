"""How numbers and foreign text are written."""
