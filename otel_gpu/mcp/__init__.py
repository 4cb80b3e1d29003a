"""Questions of assistants, over the Model Context Protocol, to a recording or a store."""
