"""
Dumps of PyTorch's Flight Recorder: the last collectives that each rank of a job called.

A file is one rank. ``dump`` reads and checks it, ``requests`` says what an entry asked for,
``capture`` joins the ranks.
"""
