"""
The snapshots of its caching allocator that PyTorch writes (``torch.cuda.memory._dump_snapshot``).

They are pickles, which ``plain_pickle`` reads without running any: ``shapes`` checks what is in them
and keeps it small, ``capture`` makes it the memory of each device.
"""
