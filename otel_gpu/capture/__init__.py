"""Records from the kernel, or from a recording."""
