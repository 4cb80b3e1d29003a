"""Why a request for device memory failed, and what allocates again and again."""
