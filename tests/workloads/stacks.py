"""
Makes CUDA calls from Python stacks of known shape, and says what each stack was.

    stacks.py LIBRARY

Prints one line of JSON about itself, and then does what each line of its standard input
names, and prints what the stacks of its calls were: of each the thread, and the frames,
innermost first, as sys._getframe() shows them. The call of the innermost frame is in the
same line as what looks at it.
"""

import _thread
import ctypes
import json
import os
import sys
import threading
import time
import types

CUDA = ctypes.CDLL(sys.argv[1])
FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
# For what a test wants to find in this process's memory.
BUFFER = ctypes.create_string_buffer(1 << 20)
stacks = []


def look():
    frames = []
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        frames.append(
            {
                "name": getattr(code, "co_qualname", code.co_name),
                "file": code.co_filename,
                "first_line": code.co_firstlineno,
                "line": frame.f_lineno,
                "offset": frame.f_lasti,
                "lines": list(code.co_lines()),
                "line_table": code.co_linetable.hex(),
            }
        )
        frame = frame.f_back
    stacks.append(
        {"tid": threading.get_native_id(), "ident": threading.get_ident(), "frames": frames}
    )


def leaf():
    look(), CUDA.cudaDeviceSynchronize()


def middle(depth):
    if depth:
        middle(depth - 1)
    else:
        leaf()


def nested():
    middle(
        3,
    )


class Thing:
    def method(self):
        look(), CUDA.cudaDeviceSynchronize()

    @staticmethod
    def build(make):
        return [make() for _ in range(1)]


def in_method():
    Thing().method()
    Thing.build(lambda: (look(), CUDA.cudaDeviceSynchronize()))


def generate():
    for _ in range(2):
        yield look(), CUDA.cudaDeviceSynchronize()


def in_generator():
    generator = generate()
    list(generator)


class Maker:
    def __init__(self):
        look(), CUDA.cudaDeviceSynchronize()


def in_constructor():
    # Often enough for the interpreter to have a shortcut for it.
    for _ in range(100):
        Maker()


def generate_often():
    for number in range(100):
        look(), CUDA.cudaDeviceSynchronize()
        yield number


def in_loop_over_generator():
    for _ in generate_often():
        pass


def in_comprehension():
    return [(look(), CUDA.cudaDeviceSynchronize()) for _ in range(3)]


class Clearing:
    def __del__(self):
        look(), CUDA.cudaDeviceSynchronize()


def forget():
    kept = Clearing()
    return kept is None


def in_finalizer():
    # The first while its frame is cleared, whose evaluation loop was entered from C.
    list(map(lambda _: forget(), range(3)))  # noqa: C417 - to enter Python from C
    list(map(forget_it, range(3)))


def forget_it(_):
    kept = Clearing()
    return kept is None


def in_callback():
    # C code, called from Python, that calls Python: the stub calls it inside the call.
    @FUNCTION
    def callback(_):
        look(), CUDA.cudaDeviceSynchronize()

    CUDA.stub_call_inside(b"cudaFree", callback, None)
    look(), CUDA.cudaFree(None)
    CUDA.stub_call_inside(b"cudaFree", FUNCTION(), None)
    sorted([1], key=lambda _: leaf())


def in_thread():
    thread = threading.Thread(target=leaf)
    thread.start()
    thread.join()


def in_bare_thread():
    done = threading.Lock()
    done.acquire()

    def run():
        leaf()
        done.release()

    _thread.start_new_thread(run, ())
    done.acquire()


def in_c_thread():
    # A thread that the interpreter has never heard of calls, and nothing else.
    libc = ctypes.CDLL(None)
    thread = ctypes.c_size_t()
    entry = ctypes.cast(CUDA.cudaDeviceSynchronize, ctypes.c_void_p)
    libc.pthread_create(ctypes.byref(thread), None, entry, None)
    libc.pthread_join(thread, None)


def recurse(depth):
    if depth:
        recurse(depth - 1)
    else:
        CUDA.cudaDeviceSynchronize()


def deep():
    sys.setrecursionlimit(20_000)
    # Before 3.11 each level takes room on the thread's own stack.
    threading.stack_size(256 << 20)
    thread = threading.Thread(target=recurse, args=(10_000,))
    thread.start()
    thread.join()


def climb(levels):
    if levels:
        sorted([levels], key=lambda left: climb(left - 1))
    else:
        leaf()


def in_large_stacks():
    for levels in (0, 3, 6, 12, 100):
        climb(levels)


def in_gap():
    CUDA.cudaDeviceSynchronize()
    look(), time.sleep(0.05)
    CUDA.cudaDeviceSynchronize()


def wait_often():
    CUDA.cudaDeviceSynchronize()
    for _ in range(100):
        time.sleep(0.0001)
    CUDA.cudaDeviceSynchronize()


def texts():
    for name in ("é", "大", "\N{GRINNING FACE}", "n" * 600, "大" * 600):
        code = leaf.__code__.replace(co_name=name, co_filename=f"{name}.py")
        if sys.version_info >= (3, 11):  # noqa: UP036 - older ones run this too
            code = code.replace(co_qualname=name)
        types.FunctionType(code, globals())()


def in_long_code():
    space = {"look": look, "CUDA": CUDA}
    lines = ["def long():", *["    x = 1"] * 9000, "    look(), CUDA.cudaDeviceSynchronize()"]
    exec(compile("\n".join(lines), "long.py", "exec"), space)  # noqa: S102 - what is needed here
    space["long"]()


def rest():
    time.sleep(0.05)


def spin():
    # In one call, on a CPU that others want too, until the input says something.
    CUDA.stub_set(b"cudaStreamSynchronize", b"spin_ns=3000000000")
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    thread = threading.Thread(target=CUDA.cudaStreamSynchronize, args=(None,), daemon=True)
    thread.start()
    stacks.append({"tid": thread.native_id})
    answer()
    while thread.is_alive():
        pass


def die():
    # Code that nobody has seen before, and that nobody can look at afterwards.
    space = {"look": look, "answer": answer, "CUDA": CUDA, "os": os}
    source = "def last():\n    look(), answer(), CUDA.cudaDeviceSynchronize(), os._exit(0)\n"
    exec(compile(source, "gone.py", "exec"), space)  # noqa: S102 - what is needed here
    space["last"]()


def answer():
    json.dump(stacks, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()
    stacks.clear()


def main():
    about = {
        "runtime": ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime")),
        "version": sys.hexversion,
        "buffer": ctypes.addressof(BUFFER),
        "thread": threading.get_ident(),
    }
    json.dump(about, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()
    for line in sys.stdin:
        globals()[line.strip()]()
        answer()


main()
