"""Why a request for device memory failed, and which calls allocate repeatedly."""
