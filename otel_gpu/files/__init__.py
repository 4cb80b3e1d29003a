"""Files of the agent: those at paths that another user could prepare, and the libraries that were built."""
