"""
The databases that ``nsys export --type sqlite`` makes of a report of Nsight Systems.

Facts that are not in the tables:

- Times are nanoseconds after the start of the session, whose Unix time is ``utcEpochNs`` of
  ``TARGET_INFO_SESSION_START_TIME``. They may be negative.
- ``globalTid`` holds a number of the machine in its upper 16 bits, then 24 bits for the process and 24
  for the thread; ``globalPid`` is the same without a thread. Correlations are unique in a process.
- Names are numbers of rows of ``StringIds``. Those of the runtime end with its version
  (``cudaLaunchKernel_v7000``).
- A table without rows can be missing, and indexes are missing.
- Operators of PyTorch are ranges of NVTX (``torch.autograd.profiler.emit_nvtx``) whose text goes on
  after the name: ``aten::mm, seq = 3, op_id = 5, sizes = [[4, 8], [8, 2]]``.

``tables`` makes columns of the rows, ``capture`` one event for each process.
"""
