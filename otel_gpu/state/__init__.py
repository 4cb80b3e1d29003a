"""The ledger: cumulative readings in, what they add up to between two moments out."""
