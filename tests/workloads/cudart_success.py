"""
Allocates, copies and frees on a real GPU through ctypes, and measures that by events.

Usage: cudart_success.py LIBRARY ROUNDS BYTES. Prints its pid, every result that
was not success, and the milliseconds that it measured.
"""

import ctypes
import json
import os
import sys

HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2


def main() -> None:
    """Make ROUNDS iterations of nine calls."""
    library = ctypes.CDLL(sys.argv[1])
    rounds, size_bytes = int(sys.argv[2]), ctypes.c_size_t(int(sys.argv[3]))
    there, back = ctypes.create_string_buffer(size_bytes.value), ctypes.c_void_p()
    properties = ctypes.create_string_buffer(4096)
    results = [library.cudaGetDeviceProperties(properties, 0)]
    start, end = ctypes.c_void_p(), ctypes.c_void_p()
    results += [library.cudaEventCreate(ctypes.byref(event)) for event in (start, end)]
    milliseconds, measured = ctypes.c_float(), []
    for _ in range(rounds):
        results += [
            library.cudaMalloc(ctypes.byref(back), size_bytes),
            library.cudaEventRecord(start, None),
            library.cudaMemcpy(back, there, size_bytes, HOST_TO_DEVICE),
            library.cudaMemcpy(there, back, size_bytes, DEVICE_TO_HOST),
            library.cudaEventRecord(end, None),
            library.cudaDeviceSynchronize(),
            library.cudaEventQuery(end),
            library.cudaEventElapsedTime(ctypes.byref(milliseconds), start, end),
            library.cudaFree(back),
        ]
        measured.append(milliseconds.value)
    failures = [result for result in results if result]
    json.dump({"pid": os.getpid(), "failures": failures, "measured": measured}, sys.stdout)
    sys.stdout.write("\n")


main()
