"""Files of the agent: those at untrusted paths, and the built preload libraries."""
