"""
Serves requests with the stand-in for vLLM, whose worker is a process of its own.

    opentelemetry-instrument served.py LIBRARY REQUESTS

Knows nothing of OpenTelemetry but that requests have a header. Each call of CUDA in the worker allocates
a number of bytes that no other call has. Prints one line of JSON: the pid of the worker, and of each
step the numbers of its calls.
"""

import ctypes
import itertools
import json
import multiprocessing
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "engines"))

from vllm.plugins import load_general_plugins
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.request import Request

CALLS = 7


def work(pipe, library):
    """Run batches as they come, in another process than who schedules them."""
    load_general_plugins()
    from vllm.v1.worker.gpu_worker import Worker  # noqa: PLC0415 - as the engine does

    cuda = ctypes.CDLL(library)
    numbers = itertools.count(1)
    made = []

    def launch(_call):
        for _ in range(CALLS):
            made.append(next(numbers))
            cuda.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(made[-1]))

    worker = Worker(launch)
    for call, argument in iter(pipe.recv, None):
        getattr(worker, call)(argument)
        pipe.send(made[:])
        made.clear()
    launch("after the last step")
    pipe.send(made[:])


class Executor:
    """Sends what is scheduled to the worker, pickled, as vLLM's executors do."""

    def __init__(self, library):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, library))
        self.process.start()
        self.made = []

    def execute_model(self, scheduler_output):
        self.made.append(self._ask("execute_model", scheduler_output))

    def sample_tokens(self, grammar_output):
        self.made[-1] += self._ask("sample_tokens", grammar_output)
        return 7

    def stop(self):
        self._pipe.send(None)
        after = self._pipe.recv()
        self.process.join()
        return after

    def _ask(self, call, argument):
        self._pipe.send((call, argument))
        return self._pipe.recv()


def main(library, requests):
    scheduler, executor = Scheduler(), Executor(library)
    for number in range(1, requests + 1):
        header = f"00-{number:032x}-{number + 1000:016x}-01"
        request = Request(f"r{number}", [0] * number, number, {"traceparent": header})
        scheduler.add_request(request)
    core = EngineCore(scheduler, executor)
    while core.step_fn()[1]:
        pass
    said = {"pid": executor.process.pid, "steps": executor.made, "after": executor.stop()}
    print(json.dumps(said), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
