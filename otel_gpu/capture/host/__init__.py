"""The host: its clocks, devices, network adapters and load."""
