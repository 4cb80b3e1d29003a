"""The tables of a store."""
