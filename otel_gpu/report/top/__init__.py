"""The model and the screen of ``top``."""
