"""Events and reports as rows, and back."""
