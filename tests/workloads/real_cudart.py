"""
Calls the real CUDA runtime through ctypes, as any Python program may.

Usage: real_cudart.py LIBRARY CALLS. Prints the counts of what it called and the
results it got. It knows nothing of otel_gpu.
"""

import ctypes
import json
import os
import sys
from collections import Counter


def main() -> None:
    """Make CALLS iterations of five calls."""
    library = ctypes.CDLL(sys.argv[1])
    results: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    address, milliseconds = ctypes.c_void_p(), ctypes.c_float()
    for _ in range(int(sys.argv[2])):
        for name, arguments in (
            ("cudaMalloc", (ctypes.byref(address), ctypes.c_size_t(64))),
            ("cudaFree", (None,)),
            ("cudaDeviceSynchronize", ()),
            ("cudaEventElapsedTime", (ctypes.byref(milliseconds), None, None)),
            ("cudaEventQuery", (None,)),
        ):
            results[str(getattr(library, name)(*arguments))] += 1
            calls[name] += 1
    json.dump({"pid": os.getpid(), "calls": calls, "results": results}, sys.stdout)
    sys.stdout.write("\n")


main()
