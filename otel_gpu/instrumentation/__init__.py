"""
Code that runs inside applications: it publishes contexts and resources, and makes spans of steps.

The agent does not import this package, and this package does not need the agent. A part that cannot
work (no native library for this machine, an interpreter without a function) does nothing.
"""
