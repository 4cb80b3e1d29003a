"""The views of a store, for questions in SQL."""
