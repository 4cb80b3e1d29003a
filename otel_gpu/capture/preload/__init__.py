"""Programs that count their calls themselves, in the preload library."""
