"""Which process, service, container and device an event belongs to."""
