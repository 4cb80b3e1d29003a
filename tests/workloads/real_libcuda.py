"""
Calls the real driver library through ctypes, as any Python program may.

Usage: real_libcuda.py LIBRARY CALLS. Prints the counts of what it called, and how often each
of that returned what. It knows nothing of otel_gpu.
"""

import ctypes
import json
import os
import sys
from collections import Counter

NULL, SIZE = None, ctypes.c_size_t(64)
CALLS = {
    "cuCtxSynchronize": (),
    "cuStreamSynchronize": (NULL,),
    "cuLaunchKernel": (NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL),
    "cuMemcpyHtoD_v2": (ctypes.c_void_p(), ctypes.c_void_p(), SIZE),
    "cuMemAlloc_v2": (ctypes.byref(ctypes.c_void_p()), SIZE),
}
# Which the runtime asks the driver for by name, and in a version of CUDA.
ASKED_FOR = ("cuEventQuery", 12000)


def main() -> None:
    """Make CALLS iterations of six calls."""
    library = ctypes.CDLL(sys.argv[1])
    query = ctypes.c_void_p()
    name, version = ASKED_FOR
    library.cuGetProcAddress(name.encode(), ctypes.byref(query), version, ctypes.c_uint64(0))
    functions = {
        **{called: getattr(library, called) for called in CALLS},
        name: ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(query.value),
    }
    calls: Counter[str] = Counter({f"cuInit {library.cuInit(0)}": 1})
    for _ in range(int(sys.argv[2])):
        for called, function in functions.items():
            result = function(*CALLS.get(called, (NULL,)))
            calls[f"{called.removesuffix('_v2')} {result}"] += 1
    json.dump({"pid": os.getpid(), "calls": calls}, sys.stdout)
    sys.stdout.write("\n")


main()
