"""The BPF programs and their maps: loaded, configured and read."""
