"""
What an ordinary node runs: one program that goes on, and others that come and go.

    ordinary_node.py LIBCUDART STEADY STORM SECONDS

Two threads of ``steady`` make 2,000 calls a second with waits. Every four seconds come three short
processes of ``storm``, and one of Python with 60 steps in which it waits for another thread and
computes, below different stacks. It begins at a line of its standard input; until then it calls
cudaFree, so that a test sees when the probes stand. It prints a line of JSON of each process: its
pid, and how many calls of which function it made.

    ordinary_node.py LIBCUDART steps
"""

import ctypes
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

PERIOD_S = 4
STEADY_CALLS, STEADY_THREADS, WAIT_NS = 2_000, 2, 400_000
SHORT, SHORT_CALLS, SHORT_PAUSE_US = 3, 7, 3_000
STEPS, LAUNCHES, DEPTHS = 60, 11, 5
BATCH_BYTES = 1 << 16
LAUNCH, WAIT, ALLOCATE = "cudaLaunchKernel", "cudaStreamSynchronize", "cudaMalloc"


def say(pid, made):
    sys.stdout.write(json.dumps({"pid": pid, "made": made}) + "\n")
    sys.stdout.flush()


class Node:
    """Starts programs, and says what each has made when it has ended."""

    def __init__(self):
        self.threads = []
        self.lock = threading.Lock()

    def start(self, command, **variables):
        """Start a program, which prints how many calls it made."""
        process = subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, text=True, env=os.environ | variables
        )
        self.threads = [thread for thread in self.threads if thread.is_alive()]
        self.threads.append(threading.Thread(target=self.follow, args=(process,)))
        self.threads[-1].start()

    def follow(self, process):
        for line in process.stdout:
            found = json.loads(line)
            made = {api: found[api] for api in (LAUNCH, WAIT, ALLOCATE) if api in found}
            if made and "pid" in found:
                with self.lock:
                    say(found["pid"], made)
        process.wait()

    def run(self, library, steady, storm, seconds):
        waits = {"CUDA_STUB": f"{WAIT}:sleep_ns={WAIT_NS}"}
        self.start((steady, library, STEADY_CALLS, seconds, STEADY_THREADS), **waits)
        short = (SHORT, SHORT, SHORT_CALLS, SHORT_PAUSE_US, "linked,opened")
        start_s = time.monotonic()
        for number in range(seconds // PERIOD_S):
            time.sleep(max(0.0, start_s + number * PERIOD_S - time.monotonic()))
            self.start((storm, library, *short))
            self.start((sys.executable, __file__, library, "steps"))
        for thread in self.threads:
            thread.join()


class Training:
    """A short training on a stub."""

    def __init__(self, library):
        self.cuda = ctypes.CDLL(library)
        self.made = Counter()
        self.source, self.target = os.pipe()

    def call(self, api, *arguments):
        getattr(self.cuda, api)(*arguments)
        self.made[api] += 1

    def launch(self, kernel):
        ones = [ctypes.c_uint64(1)] * 4
        self.call(LAUNCH, ctypes.c_void_p(id(Training) + 16 * kernel), *ones, None, 0, None)

    def feed(self):
        for _ in range(STEPS):
            time.sleep(0.011)
            os.write(self.target, bytes(8))

    def load(self):
        with Path(__file__).open("rb") as file:
            batch = file.read(BATCH_BYTES)
        os.read(self.source, 8)
        return batch

    def compute(self, batch):
        end_ns = time.thread_time_ns() + 2_000_000
        while time.thread_time_ns() < end_ns:
            hash(batch)

    def forward(self, depth):
        if depth:
            self.forward(depth - 1)
            return
        for kernel in range(LAUNCHES):
            self.launch(kernel)

    def backward(self, batch):
        self.compute(batch)
        time.sleep(0.007)
        self.launch(LAUNCHES)

    def run(self):
        self.call(ALLOCATE, ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(BATCH_BYTES))
        self.cuda.stub_set(WAIT.encode(), b"sleep_ns=3000000")
        threading.Thread(target=self.feed, daemon=True).start()
        for number in range(STEPS):
            batch = self.load()
            self.forward(number % DEPTHS)
            self.backward(batch)
            self.call(WAIT, None)
        sys.stdout.write(json.dumps({"pid": os.getpid(), **self.made}) + "\n")


def wait_for_line(library):
    """Call cudaFree until there is a line."""
    cuda = ctypes.CDLL(library)
    say(os.getpid(), {})
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        cuda.cudaFree(None)


if __name__ == "__main__":
    if sys.argv[2] == "steps":
        Training(sys.argv[1]).run()
    else:
        wait_for_line(sys.argv[1])
        Node().run(*sys.argv[1:4], int(sys.argv[4]))
