"""Device memory: what holds it, its layout, and its history."""
