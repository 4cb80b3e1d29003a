"""
The agent as a service of the host: its files, who may be trusted with its program, its state.

The files themselves are in ``deploy/systemd`` and come along in the wheel.
"""
