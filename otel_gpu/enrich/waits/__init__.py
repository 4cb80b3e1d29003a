"""What a blocked thread waits for."""
