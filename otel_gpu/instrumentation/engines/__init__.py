"""
Spans of the steps of inference engines, through the plugin interfaces of the engines.

A step runs requests of many traces as one batch. So it has no parent: it is a trace of its own, with
a link to each request.
"""
