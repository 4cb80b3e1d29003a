"""
Makes CUDA calls through every kind of call that Python has, while another thread works.

    merged.py LIBCUDART LIBNATIVE TIMES

Each chain of calls ends with cudaMalloc, once per time, for as many bytes as say which chain
it is: 1,000 times its number, plus the time. Prints the numbers of the chains, by name.
Each line that calls has a comment of its own: tests know it by that.
"""

import asyncio
import contextlib
import ctypes
import functools
import json
import os
import sys
import threading
import time

CUDA = ctypes.CDLL(sys.argv[1])
NATIVE = ctypes.CDLL(sys.argv[2])
LIBC = ctypes.CDLL(None)
ALLOCATE = ctypes.cast(CUDA.cudaMalloc, ctypes.c_void_p)
COMPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
ROW = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p
)
ADDRESS = ctypes.c_void_p()
size_bytes = ctypes.c_size_t()


def allocate():
    return CUDA.cudaMalloc(ctypes.byref(ADDRESS), size_bytes)  # allocates


def nested():
    def inner():
        allocate()  # in inner

    def middle():
        return [inner(), 1]  # in middle

    middle()  # in nested


class Model:
    def forward(self):
        return self.layer(  # in forward
            1,
            2,
        )

    def layer(self, *_):
        return self.build()  # in layer

    @classmethod
    def build(cls):
        return cls.static()  # in build

    @staticmethod
    def static():
        allocate()  # in static

    @property
    def size(self):
        return allocate()  # in size

    def __getattr__(self, name):
        return allocate()  # in getattr

    def __call__(self, value):
        with self:  # enters
            return value

    def __enter__(self):
        allocate()  # in enter

    def __exit__(self, *_):
        pass


def method():
    Model().forward()  # in method


def slots():
    functools.partial(Model(), 1)()  # in slots


def attribute():
    return Model().missing  # in attribute


def prop():
    return Model().size  # in prop


def comprehension():
    return [allocate() for _ in range(1)]  # in comprehension


def batches():
    yield allocate()  # in batches


def generator():
    for _ in batches():  # in generator
        pass


def generator_of_c():
    return sum(1 for _ in batches())  # in generator of c


async def copy():
    allocate()  # in copy


async def train():
    await copy()  # in train


def coroutine():
    loop.run_until_complete(train())  # in coroutine


def decorated_by(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        return function(*arguments)  # in wrapper

    return wrapper


@decorated_by
def decorated():
    allocate()  # in decorated


def lambdas():
    return (lambda _: [allocate()])(0)  # noqa: PLC3002 # in lambdas


def from_sorted():
    return sorted([1], key=lambda _: allocate())  # in sorted


def from_ctypes():
    ctypes.PYFUNCTYPE(None)(allocate)()  # in ctypes


def from_qsort():
    def compare(_left, _right):
        allocate()  # in compare
        return 0

    numbers = (ctypes.c_int * 2)(2, 1)
    LIBC.qsort(numbers, 2, ctypes.sizeof(ctypes.c_int), COMPARE(compare))  # in qsort


def from_sqlite():
    @ROW
    def row(*_):
        allocate()  # in row
        return 0

    SQLITE.sqlite3_exec(database, b"SELECT 1", row, None, None)  # in sqlite


class Tensor:
    def __del__(self):
        allocate()  # in del


def from_end_of_object():
    tensor = Tensor()
    del tensor  # in end


def from_except():
    try:
        int("x")
    except ValueError:
        with contextlib.suppress(KeyError):
            allocate()  # in except


def from_exec():
    exec("allocate()", globals())  # noqa: S102 # in exec


def from_thread():
    thread = threading.Thread(target=allocate)
    thread.start()
    thread.join()


def native():
    NATIVE.native_outer(ALLOCATE, size_bytes)  # in native


def native_qsort():
    NATIVE.native_sort(ALLOCATE, size_bytes)  # in native qsort


def c_thread():
    entry = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: allocate())  # in c thread
    thread = ctypes.c_size_t()
    LIBC.pthread_create(ctypes.byref(thread), None, entry, None)
    LIBC.pthread_join(thread, None)


CHAINS = [
    nested,
    method,
    slots,
    attribute,
    prop,
    comprehension,
    generator,
    generator_of_c,
    coroutine,
    decorated,
    lambdas,
    from_sorted,
    from_ctypes,
    from_qsort,
    from_sqlite,
    from_end_of_object,
    from_except,
    from_exec,
    from_thread,
    c_thread,
    native,
    native_qsort,
]


def work(depth=0):
    # Something that moves frames about all the time.
    while not ended:
        if depth < 50:
            work(depth + 1)
        sum(value * value for value in range(100))
        if depth:
            return


def run(number, chain, times):
    for call in range(times):
        size_bytes.value = 1000 * number + call
        chain()  # runs


ended = False
database = ctypes.c_void_p()
try:
    SQLITE = ctypes.CDLL("libsqlite3.so.0")
    SQLITE.sqlite3_open(b":memory:", ctypes.byref(database))
except OSError:
    CHAINS.remove(from_sqlite)
loop = asyncio.new_event_loop()
worker = threading.Thread(target=work)
worker.start()
for number, chain in enumerate(CHAINS, 1):
    run(number, chain, int(sys.argv[3]))  # all
ended = True
worker.join()
loop.close()
names = {chain.__name__: number for number, chain in enumerate(CHAINS, 1)}
json.dump({"pid": os.getpid(), "chains": names, "ktime_ns": time.monotonic_ns()}, sys.stdout)
sys.stdout.write("\n")
sys.stdout.flush()
# While it is there, what it maps can be read, however late that is.
sys.stdin.readline()
