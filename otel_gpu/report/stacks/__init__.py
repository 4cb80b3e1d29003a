"""Reports of stacks."""
