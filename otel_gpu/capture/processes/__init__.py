"""The watched processes: discovery, probes, interpreters, thread contexts, and their end."""
