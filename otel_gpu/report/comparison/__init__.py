"""The comparison of two captures of one program."""
