"""
Launches kernels by everything that a launch can name one by.

    launches.py LIBCUDART LIBCUDA TIMES

Prints one line of JSON: its pid, and by the name of each kernel how it was launched.
"""

import ctypes
import json
import os
import sys

RUNTIME, DRIVER = map(ctypes.CDLL, sys.argv[1:3])
TIMES = int(sys.argv[3])
# Any function of a file: what nvcc makes of a kernel is one too.
ADDRESS = ctypes.cast(RUNTIME.stub_set, ctypes.c_void_p)
MATRIX, VECTOR = b"_Z13matrix_kernelIfEvPT_i", b"vector_kernel"
NOTHING = ctypes.c_void_p()
GIVEN_OUT_BEFORE = ctypes.c_void_p(0xABCD0)


def get(function, *arguments):
    handle = ctypes.c_void_p()
    function(ctypes.byref(handle), *arguments)
    return handle


def launch(function):
    DRIVER.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, *[NOTHING] * 3)


kernel = get(RUNTIME.__getattr__("__cudaGetKernel"), ADDRESS)
module_function = get(DRIVER.cuModuleGetFunction, NOTHING, VECTOR)
library_function = get(DRIVER.cuKernelGetFunction, get(DRIVER.cuLibraryGetKernel, NOTHING, MATRIX))
config = ctypes.create_string_buffer(64)
for _ in range(TIMES):
    RUNTIME.cudaLaunchKernel(ADDRESS, *[ctypes.c_uint64(1)] * 4, NOTHING, NOTHING, NOTHING)
    RUNTIME.cudaLaunchKernelExC(config, kernel, NOTHING)
    launch(module_function)
    launch(library_function)
    launch(GIVEN_OUT_BEFORE)
print(json.dumps({"pid": os.getpid()}))  # noqa: T201
