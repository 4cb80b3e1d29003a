"""For which rank a rank waits."""
