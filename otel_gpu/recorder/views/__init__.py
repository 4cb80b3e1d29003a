"""The views of a store, for queries in SQL."""
