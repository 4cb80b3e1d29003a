"""Device memory: who holds it, how it lies, and how that came to be."""
