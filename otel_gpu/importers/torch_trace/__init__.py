"""
The traces that ``torch.profiler`` (Kineto) writes: JSON, alone or compressed by gzip, one file a process.

``text`` opens one, ``scanner`` finds its events, also behind damaged ones, ``rows`` makes them columns,
and ``capture`` makes these one event for each file.
"""
