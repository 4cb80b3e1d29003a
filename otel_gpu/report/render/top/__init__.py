"""The screen of ``top``."""
