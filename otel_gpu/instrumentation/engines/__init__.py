"""
Steps of inference engines, seen from inside of them through their own plugin interfaces.

An engine runs requests of many traces as one batch, so a step has no parent: it is a trace of its
own that links to each of them.
"""
