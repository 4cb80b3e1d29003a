"""Two captures of one program, compared."""
