"""What a capture adds up to, for people and for programs."""
