"""
What runs inside an application: its context for readers outside, and a distribution.

Nothing here is imported by the agent, and nothing here needs it. Where a part cannot work (no
native library for this machine, an interpreter that does not say something), it does nothing.
"""
