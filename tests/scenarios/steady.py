"""What is done to the loop in every step, beside what the demo has; see ``otel_gpu/demo/steady.py``."""

import multiprocessing
import os
import socket
import tempfile
from collections.abc import Callable
from typing import Any

from otel_gpu.demo.busy import STEP_NS, step, work_between_steps
from otel_gpu.demo.clocks import blocked_ns, run_queue_ns
from otel_gpu.demo.loop import (
    GPU_NS,
    MS,
    STEPS,
    Act,
    Helper,
    Trainer,
    compute,
    die_with_parent,
    place_of,
    set_name,
    sleep,
    spin,
)
from tests.scenarios.neighbour import MESSAGE, connect

_SYNCHRONIZES = 101
_BURST_NS = 3_300_000
_CHECKPOINT_BYTES = 8 << 20
_REQUESTS = 7


def steady_sleep(trainer: Trainer) -> None:
    """Every step sleeps 20 ms."""
    step(trainer)
    for _ in range(STEPS):
        start_ns = blocked_ns()
        sleep(STEP_NS)
        trainer.lose("sleep", blocked_ns() - start_ns)
        step(trainer)


def steady_host_work(trainer: Trainer) -> None:
    """Every step works 20 ms in Python between two launches."""
    work_between_steps(trainer, lambda: compute(STEP_NS), place_of(compute, lines=2))


def steady_loader(trainer: Trainer) -> None:
    """Every step waits for a data loader, whose worker burns the CPU for 20 ms."""
    wait_for_loader(trainer, lambda: compute(STEP_NS), place_of(compute, lines=2))


def wait_for_loader(trainer: Trainer, load: Act, place: dict[str, Any]) -> None:
    """Wait before every step for a data loader, whose worker works at a place."""
    worker, batches = start_worker(trainer, load, batches=1)
    batches.get()
    step(trainer)
    for _ in range(STEPS):
        start_ns = blocked_ns()
        batches.get()
        waited_ns = blocked_ns() - start_ns
        via = {"kind": "host_work", "time_ns": waited_ns, "pid": worker, "tid": worker}
        # What it waits for directly is the thread of the worker that feeds the pipe.
        trainer.lose("ipc", waited_ns, pid=worker, via=via | {"place": place})
        step(trainer)


def full_queue(trainer: Trainer) -> None:
    """A data loader waits, as its queue is full: the device is the limit."""
    _, batches = start_worker(trainer, lambda: compute(MS), batches=2)
    batches.get()
    sleep(5 * GPU_NS)
    for _ in range(STEPS):
        batches.get()
        step(trainer)
        step(trainer)


def start_worker(trainer: Trainer, load: Act, batches: int) -> tuple[int, Any]:
    """
    Start a worker that fills a queue as a data loader's does: by a thread and a pipe.

    Returns its pid and the queue, which holds at most so many ``batches``.
    """
    context = multiprocessing.get_context("fork")
    queue = context.Queue(batches)

    def work() -> None:
        die_with_parent()
        set_name("loader")
        os.sched_setaffinity(0, {trainer.other_cpu})
        while True:
            load()
            queue.put(b"batch")

    worker = context.Process(target=work, daemon=True)
    worker.start()
    return worker.pid or 0, queue


def steady_contention(trainer: Trainer) -> None:
    """A hog has the loop's CPU half of the time."""
    hog = Helper("hog", trainer.cpu, _hog_on_and_off)
    _contend(trainer, hog.order, hog.pid)


def noisy_neighbour(trainer: Trainer) -> None:
    """A hog of another cgroup, which is not watched, has the loop's CPU half of the time."""
    neighbour = connect()
    hog = neighbour.ask("hog", trainer.cpu)
    _contend(trainer, neighbour.begin, hog)


def _contend(trainer: Trainer, begin: Callable[[], object], pid: int) -> None:
    begin()
    for _ in range(STEPS):
        waited_ns = run_queue_ns()
        compute(STEP_NS // 2)
        step(trainer)
        trainer.lose("run_queue", run_queue_ns() - waited_ns, pid=pid)


def _hog_on_and_off(_helper: Helper, _: int, __: int) -> None:
    while True:
        spin(5 * MS)
        sleep(5 * MS)


def long_synchronize(trainer: Trainer) -> None:
    """Each of 101 synchronize calls ends 3.3 ms late: a hog has the CPU."""
    thief = Helper("hog", trainer.cpu, _spin_once, urgency=10)

    def wake_late() -> None:
        waited_ns = run_queue_ns()
        thief.order(GPU_NS - MS + _BURST_NS)
        sleep(GPU_NS)
        trainer.lose("run_queue", run_queue_ns() - waited_ns, pid=thief.pid)

    for _ in range(_SYNCHRONIZES):
        trainer.launch()
        trainer.synchronize(wake_late)


def _spin_once(_helper: Helper, _: int, length_ns: int) -> None:
    sleep(MS)
    spin(length_ns)


def idle_server(trainer: Trainer) -> None:
    """A server waits for requests, and gets few."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        neighbour = connect()
        neighbour.ask("client", listener.getsockname()[1])
        connection, _ = listener.accept()
        neighbour.begin()
    with connection:
        for _ in range(_REQUESTS):
            connection.recv(MESSAGE.size)
            step(trainer)
            connection.sendall(bytes(MESSAGE.size))


def remote_read(trainer: Trainer) -> None:
    """Every step reads from a server of another network, which answers after 20 ms."""
    neighbour = connect()
    address, port = neighbour.address, neighbour.ask("server", STEP_NS)
    neighbour.begin()
    with socket.create_connection((address, port)) as server:
        step(trainer)
        for _ in range(STEPS):
            server.sendall(bytes(MESSAGE.size))
            start_ns = blocked_ns()
            server.recv(MESSAGE.size)
            trainer.lose("network", blocked_ns() - start_ns, resource=f"{address}:{port}")
            step(trainer)


def checkpoint(trainer: Trainer) -> None:
    """Every other step writes 8 MiB to a file, and waits until they are on the disk."""
    block = b"\1" * _CHECKPOINT_BYTES
    with tempfile.NamedTemporaryFile(dir="/var/tmp", prefix="checkpoint-", buffering=0) as file:
        for number in range(STEPS):
            if number % 2:
                start_ns = blocked_ns()
                os.pwrite(file.fileno(), block, 0)
                os.fsync(file.fileno())
                trainer.lose("io", blocked_ns() - start_ns, resource=file.name)
            step(trainer)
        start_ns = blocked_ns()
    # To remove it takes the disk a while, too.
    trainer.lose("io", blocked_ns() - start_ns, resource=file.name)


ALONE = (
    steady_loader,
    steady_sleep,
    steady_host_work,
    steady_contention,
    full_queue,
    long_synchronize,
    checkpoint,
)
WITH_NEIGHBOUR = (noisy_neighbour, idle_server, remote_read)
