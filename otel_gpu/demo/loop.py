"""
The loop of the scenarios, and the helpers that make it slow.

Times come from the clock, from helpers and from the kernel's counters, never from the agent. The
loop has a CPU of its own. Each scenario decides which helpers ("hog", "loader", ...) share it.
Helpers die with the program.
"""

import contextlib
import ctypes
import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple, Protocol

from otel_gpu.demo.clocks import on_cpu_ns, run_queue_ns

MS = 1_000_000
STEPS = 60
FIRST_EFFECT = 24  # the steps before it show what is normal
EFFECT_EVERY = 10
LAUNCH_NS = 50_000  # of CPU time, in every launch
GPU_NS = 3 * MS  # of sleep, in every synchronize

MALLOC, LAUNCH, SYNCHRONIZE = "cudaMalloc", "cudaLaunchKernel", "cudaStreamSynchronize"

_MESSAGE = struct.Struct("=QQ")
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15

Act = Callable[[], None]
Work = Callable[["Helper", int, int], None]
libc = ctypes.CDLL(None, use_errno=True)


class Dim3(ctypes.Structure):
    """The size of a grid or a block."""

    _fields_ = [(axis, ctypes.c_uint) for axis in "xyz"]


class Report(NamedTuple):
    """When a helper began or ended a burst (monotonic), and a value that it sent."""

    time_ns: int
    work_ns: int


def compute(cpu_ns: int) -> None:
    """Use CPU time. It takes longer while others have the CPU."""
    end_ns = time.thread_time_ns() + cpu_ns
    while time.thread_time_ns() < end_ns:
        pass


def spin(duration_ns: int) -> None:
    """Poll the clock for a duration, like a driver that waits for space in its queue."""
    end_ns = time.monotonic_ns() + duration_ns
    while time.monotonic_ns() < end_ns:
        pass


def sleep(duration_ns: int) -> None:
    """Sleep for a duration; the kernel adds a little."""
    time.sleep(duration_ns / 1e9)


def is_slow(step: int) -> bool:
    """Return whether a step of the loop is made slow."""
    return step >= FIRST_EFFECT and (step - FIRST_EFFECT) % EFFECT_EVERY == 0


class Function(Protocol):
    """A function written in Python."""

    @property
    def __code__(self) -> CodeType: ...


def place_of(function: Function, lines: int | None = 1) -> dict[str, object]:
    """Return a function's name, file and last ``lines`` lines (None: all lines)."""
    code = function.__code__
    last = max(line for _, _, line in code.co_lines() if line)
    first = code.co_firstlineno if lines is None else last - lines + 1
    place = {"function": code.co_name, "file": Path(code.co_filename).name}
    return place | {"first_line": first, "last_line": last}


def set_name(comm: str) -> None:
    """Name this thread."""
    libc.prctl(_PR_SET_NAME, comm.encode())


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies."""
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def become_urgent(urgency: int) -> None:
    """Preempt less urgent tasks: as a real-time task, else by priority."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(urgency))
    except PermissionError:
        os.setpriority(os.PRIO_PROCESS, 0, -20)


class Helper:
    """A process or thread that disturbs the loop on orders through a pipe."""

    def __init__(
        self,
        comm: str,
        cpu: int,
        work: Work,
        *,
        is_thread: bool = False,
        urgency: int = 0,
    ) -> None:
        self._work, self._urgency = work, urgency
        self._orders, self._sender = os.pipe()
        self._reports, self._reporter = os.pipe()
        if is_thread:
            threading.Thread(target=self._run, args=(comm, cpu), daemon=True).start()
        elif not os.fork():
            die_with_parent()
            os.close(self._sender)
            self._run(comm, cpu)
            os._exit(0)
        else:
            os.close(self._orders)
        self.tid = self.await_report().work_ns
        self.pid = os.getpid() if is_thread else self.tid

    def order(self, length_ns: int = 0, delay_ns: int = 0) -> None:
        """Order its work, of this length, after a delay."""
        os.write(self._sender, _MESSAGE.pack(delay_ns, length_ns))

    def await_report(self) -> Report:
        """Wait for its next report."""
        return Report(*_MESSAGE.unpack(os.read(self._reports, _MESSAGE.size)))

    def await_burst(self) -> int:
        """Wait for the end of a burst; return its duration."""
        began = self.await_report()
        return self.await_report().time_ns - began.time_ns

    def report(self, work_ns: int = 0) -> None:
        """Report, from the helper, that work begins or has ended."""
        os.write(self._reporter, _MESSAGE.pack(time.monotonic_ns(), work_ns))

    def _run(self, comm: str, cpu: int) -> None:
        set_name(comm)
        os.sched_setaffinity(0, {cpu})
        if self._urgency:
            become_urgent(self._urgency)
        on_cpu_ns()  # the first call can block
        self.report(threading.get_native_id())
        while order := os.read(self._orders, _MESSAGE.size):
            self._work(self, *_MESSAGE.unpack(order))


def _wait_for_device() -> None:
    sleep(GPU_NS)


class Trainer:
    """The loop, with the disturbances in its calls, and a record of their effects."""

    def __init__(self, cuda: ctypes.CDLL) -> None:
        self.cuda = cuda
        on_cpu_ns()  # the first call can block
        cpus = sorted(os.sched_getaffinity(0))
        self.cpu, self.other_cpu = cpus[-1], cpus[-2 % len(cpus)]
        self.malloc_ns = LAUNCH_NS
        self.effects: list[dict[str, Any]] = []
        self.losses: dict[tuple[str, int, str], dict[str, Any]] = {}
        # At the first call: the clock, and the thread's time waiting for a CPU.
        self._began_ns: tuple[int, int] | None = None
        # Why a memory request failed, and the places of the request and of the held blocks.
        self.memory: dict[str, object] | None = None
        self._inside: dict[str, Act | None] = {}
        self._wait: Act = _wait_for_device
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        self._callbacks = {
            MALLOC: kind(lambda _: compute(self.malloc_ns)),
            LAUNCH: kind(lambda _: self._act(LAUNCH, lambda: compute(LAUNCH_NS))),
            SYNCHRONIZE: kind(lambda _: self._act(SYNCHRONIZE, self._wait)),
        }
        for api, callback in self._callbacks.items():
            self.cuda.stub_call_inside(api.encode(), callback, None)

    def _act(self, api: str, usual: Act) -> None:
        usual()
        if act := self._inside.get(api):
            act()

    @contextlib.contextmanager
    def effect(self, kind: str, api: str, inside: Act | None = None) -> Iterator[None]:
        """Note a slow call or gap around the body; ``inside`` runs in the call."""
        effect = {"kind": kind, "api": api, "start_ns": time.monotonic_ns(), "causes": []}
        self.effects.append(effect)
        self._inside[api] = inside
        yield
        self._inside[api] = None
        effect["end_ns"] = time.monotonic_ns()

    def inject(
        self,
        kind: str,
        time_ns: int,
        by: Helper | None = None,
        via: dict[str, object] | None = None,
        place: dict[str, object] | None = None,
    ) -> None:
        """Note a cause of the current effect, and the place of its code."""
        who = {"pid": by.pid if by else 0, "tid": by.tid if by else 0}
        cause = {"kind": kind, "time_ns": time_ns} | who | ({"via": via} if via else {})
        cause |= {"place": place} if place else {}
        self.effects[-1]["causes"].append(cause)

    def lose(
        self,
        kind: str,
        time_ns: int,
        *,
        pid: int = 0,
        via: dict[str, Any] | None = None,
        resource: str = "",
        place: dict[str, object] | None = None,
    ) -> None:
        """Add the time that one step lost to a repeated cause."""
        nothing = {"kind": kind, "time_ns": 0, "pid": pid, "resource": resource, "via": None}
        nothing |= {"place": place}
        loss = self.losses.setdefault((kind, pid, resource), nothing)
        loss["time_ns"] += time_ns
        if via:
            before_ns = loss["via"]["time_ns"] if loss["via"] else 0
            loss["via"] = via | {"time_ns": before_ns + via["time_ns"]}

    def sleep_inside(self, api: str, duration_ns: int) -> None:
        """Have a call sleep in C, without the GIL."""
        usleep = ctypes.cast(libc.usleep, ctypes.c_void_p)
        self.cuda.stub_call_inside(api.encode(), usleep, ctypes.c_void_p(duration_ns // 1_000))

    def launch(self) -> None:
        """Launch a kernel."""
        self._began_ns = self._began_ns or (time.monotonic_ns(), run_queue_ns())
        self.cuda.cudaLaunchKernel(
            None, Dim3(8, 1, 1), Dim3(128, 1, 1), None, ctypes.c_size_t(), None
        )

    def synchronize(self, wait: Act = _wait_for_device) -> None:
        """Wait for the device; ``wait`` replaces its usual work."""
        self._wait = wait
        self.cuda.cudaStreamSynchronize(None)

    def train(
        self,
        in_launch: Act | None = None,
        in_synchronize: Act | None = None,
        in_gap: Act | None = None,
        before: Act | None = None,
    ) -> None:
        """Run the loop; the given functions make some steps slow."""
        for step in range(STEPS):
            slow = is_slow(step)
            if slow and before:
                before()
            compute(20_000)
            if slow and in_gap:
                with self.effect("slow_gap", LAUNCH):
                    in_gap()
            for api, call, act in (
                (LAUNCH, self.launch, in_launch),
                (SYNCHRONIZE, self.synchronize, in_synchronize),
            ):
                if slow and act:
                    with self.effect("slow_call", api, act):
                        call()
                else:
                    call()

    def truth(self, name: str) -> dict[str, object]:
        """
        Return the injected effects and losses.

        ``took_ns`` is the time since the first call, ``waited_ns`` the part of it waiting for a CPU.
        """
        now_ns = time.monotonic_ns(), run_queue_ns()
        took_ns, waited_ns = (
            now - then for now, then in zip(now_ns, self._began_ns or now_ns, strict=True)
        )
        return {
            "scenario": name,
            "pid": os.getpid(),
            "tid": threading.get_native_id(),
            "monotonic_ns": time.monotonic_ns(),
            "unix_ns": time.time_ns(),
            "effects": self.effects,
            "losses": list(self.losses.values()),
            "memory": self.memory,
            "took_ns": took_ns,
            "waited_ns": waited_ns,
        }
