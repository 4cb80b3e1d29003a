"""
The report as one HTML file that needs nothing else: no network, no other file.

Pure functions from ``report.model`` to markup. ``elements`` is where text becomes
markup, and the only module that escapes; ``page`` puts the parts together.
"""
