"""
Dumps of PyTorch's Flight Recorder: the last collectives that each rank of a job called.

A file is one rank. ``dump`` reads and checks it, ``requests`` reads the arguments of an entry,
``capture`` joins the ranks.
"""
