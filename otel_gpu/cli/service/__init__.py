"""
The agent as a systemd service: its files, the checks of their owners, its state.

The files are in ``deploy/systemd``, and in the wheel.
"""
