"""A Model Context Protocol server that answers questions about a recording or a store."""
