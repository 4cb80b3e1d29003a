"""What the maps of the BPF programs hold, read as records."""
