"""
A fleet: recordings of eight nodes with five jobs, four of them in trouble.

Healthy ranks are synthetic, record by record. Late ranks are real captures of the demo, with another host
and another environment. Each recording is replayed twice, as of a minute ago and as of now, because rates
need two points.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from otel_gpu import wire
from otel_gpu.capture.recording import RecordingWriter, read_recording
from otel_gpu.options import Config
from otel_gpu.wire.agent_records import (
    clock_record,
    counters_record,
    json_record,
    memory_records,
    times_record,
)
from tests.activities import GPU
from tests.replay.make_recordings import MS, S, aggregates, capture, counted, counters
from tests.scenarios.all_scenarios import SCENARIOS
from tests.synthetic import times_entry

NODES = 8
MINUTE_NS = 60 * S
# When processes were made, and when captures of them begin.
MADE_NS = 900 * S
BEGIN_NS = 1000 * S
ELEMENTS, BFLOAT16, SUM, NO_ROOT = 1 << 20, 9, 0, -1
LAUNCH = 1


class Job(NamedTuple):
    """One job: a communicator that all of its ranks are in."""

    id: str
    name: str
    ranks: int

    @property
    def comm(self) -> int:
        """The communicator's identity."""
        return int.from_bytes(self.name.encode()[:8].ljust(8, b"."))


class Reading(NamedTuple):
    """How far a rank is at one moment."""

    called: int
    completed: int
    waited_ns: int
    elements: int = ELEMENTS
    # How long ago the last call was.
    since_ns: int = 5 * MS


PREEMPTED = Job("4711", "pretrain", 64)
THROTTLED = Job("4712", "finetune", 8)
STARVED = Job("4713", "vision", 8)
HUNG = Job("4714", "evaluate", 8)
DISAGREEING = Job("4715", "distill", 4)
EXHAUSTED = Job("4716", "sweep", 1)
JOBS = (PREEMPTED, THROTTLED, STARVED, HUNG, DISAGREEING)
# Of each job, the rank that is in trouble.
CULPRITS = {"4711": 37, "4712": 5, "4713": 3, "4714": 6, "4715": 2}
# These are real captures.
CAPTURES = {("4711", 37): "preemption", ("4713", 3): "starved-loader"}


def node_of(job: Job, rank: int) -> int:
    """The number of the node that a rank runs on: neighbours are together."""
    return rank * NODES // job.ranks


def readings(job: Job, rank: int) -> tuple[Reading, Reading]:
    """How far a rank was a minute ago, and is now."""
    is_culprit = CULPRITS[job.id] == rank
    # No two ranks are alike.
    usual_ns = 20 * MS + rank * 10_000
    before = Reading(1_000, 1_000, 1_000 * usual_ns)
    if job in (PREEMPTED, THROTTLED, STARVED):
        waited_ns = before.waited_ns + 600 * (5 * MS if is_culprit else usual_ns)
        return before, Reading(1_600, 1_600, waited_ns)
    now = Reading(1_201, 1_200, before.waited_ns + 200 * usual_ns, since_ns=40 * S)
    if job == HUNG and is_culprit:
        return before, now._replace(called=1_200)
    if job == DISAGREEING and is_culprit:
        return before, now._replace(elements=ELEMENTS - 8)
    return before, now


class Agent(NamedTuple):
    """What the agent of one node recorded, as it was a minute ago and as it is now."""

    before: Path
    now: Path


def record(folder: Path) -> tuple[list[Agent], float]:
    """Make all recordings, and return them with the Unix time in seconds at which they end."""
    # A minute from now, so that what the Collector counts of the replays is before it.
    now_unix_ns = time.time_ns() + MINUTE_NS
    agents = [_node(folder, node, now_unix_ns) for node in range(NODES)]
    for (job_id, rank), name in CAPTURES.items():
        (job,) = (job for job in JOBS if job.id == job_id)
        agents.append(_captured(folder, name, job, rank, now_unix_ns))
    agents.append(_captured(folder, "memory-exhaustion", EXHAUSTED, 0, now_unix_ns))
    return agents, now_unix_ns / S


def _write(path: Path, records: Iterator[bytes]) -> Path:
    with RecordingWriter(path) as writer:
        writer.write(records)
    return path


def _node(folder: Path, node: int, now_unix_ns: int) -> Agent:
    ranks = [
        (job, rank)
        for job in JOBS
        for rank in range(job.ranks)
        if node_of(job, rank) == node and (job.id, rank) not in CAPTURES
    ]
    head = [
        _with_host(capture(Config(), "all"), node),
        clock_record(BEGIN_NS, now_unix_ns - MINUTE_NS - S),
        *(_process(job, rank) for job, rank in ranks),
    ]
    before_ns, now_ns = BEGIN_NS + S, BEGIN_NS + S + MINUTE_NS
    return Agent(
        _write(folder / f"{node}-before.otelgpu", iter([*head, *_read(ranks, 0, before_ns)])),
        _write(
            folder / f"{node}-now.otelgpu",
            iter([*head, *_read(ranks, 0, before_ns), *_read(ranks, 1, now_ns)]),
        ),
    )


def _captured(folder: Path, name: str, job: Job, rank: int, now_unix_ns: int) -> Agent:
    """A real capture, on the node of a rank and as that rank."""
    node = node_of(job, rank)
    path = SCENARIOS[name].recording
    records = [record for batch in read_recording(path) for record in batch]
    begin_ns = _header(records[0])["ktime_ns"]
    image = next(_header(one) for one in records if _header(one)["kind"] == wire.RECORD_PROCESS)
    process = {key: image[key] for key in ("pid", "program_ktime_ns")}
    kept = []
    for one in records:
        header = _header(one)
        if header["kind"] == wire.RECORD_CAPTURE:
            kept.append(_with_host(one, node))
        elif header["kind"] == wire.RECORD_CLOCK:
            # Later than the node's own, so that it is another one.
            since_ns = header["ktime_ns"] - begin_ns + MS
            kept.append(clock_record(header["ktime_ns"], now_unix_ns - MINUTE_NS - S + since_ns))
        elif header["kind"] == wire.RECORD_PROCESS and header["pid"] == process["pid"]:
            kept.append(_with_environment(one, job, rank))
        elif header["kind"] == wire.RECORD_EXIT and header["pid"] == process["pid"]:
            # It goes on.
            continue
        else:
            kept.append(one)
    ends = [
        [
            *(_communicator(job, rank, at, ktime_ns, **process) if job in JOBS else ()),
            counters_record(ktime_ns, counters()),
        ]
        for at, ktime_ns in enumerate((begin_ns + S, begin_ns + S + MINUTE_NS))
    ]
    begun = [one for one in kept if _header(one)["kind"] in _HEAD]
    return Agent(
        _write(folder / f"{name}-before.otelgpu", iter([*begun, *ends[0]])),
        _write(folder / f"{name}-now.otelgpu", iter([*kept, *ends[0], *ends[1]])),
    )


_HEAD = {wire.RECORD_CAPTURE, wire.RECORD_CLOCK, wire.RECORD_EXEC, wire.RECORD_PROCESS}


def _header(one: bytes) -> dict[str, int]:
    return wire.RECORD_HEADER.named(one)


def _with_host(one: bytes, node: int) -> bytes:
    body = json.loads(one[wire.RECORD_HEADER.size :])
    boot_id = f"00000000-0000-4000-8000-{node:012}"
    body["host"] |= {"name": f"node-{node}", "id": f"{node:032x}", "boot_id": boot_id}
    return json_record(wire.RECORD_CAPTURE, _header(one)["ktime_ns"], body)


def _with_environment(one: bytes, job: Job, rank: int) -> bytes:
    header = _header(one)
    body = json.loads(one[wire.RECORD_HEADER.size :])
    body["env"] = _environment(job, rank)
    image = {key: header[key] for key in ("pid", "program_ktime_ns")}
    return json_record(wire.RECORD_PROCESS, header["ktime_ns"], body, **image)


def _environment(job: Job, rank: int) -> Mapping[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % -(-job.ranks // NODES)),
        "WORLD_SIZE": str(job.ranks),
        "SLURM_JOB_ID": job.id,
        "SLURM_JOB_NAME": job.name,
    }


def _image(job: Job, rank: int) -> dict[str, int]:
    return {"pid": 100 * int(job.id) + rank, "program_ktime_ns": MADE_NS + rank}


def _process(job: Job, rank: int) -> bytes:
    body: dict[str, Any] = {
        "start_boot_ns": MADE_NS,
        "boot_offset_ns": 0,
        "exe": "/usr/bin/python3.11",
        "command_args": ["python3", f"{job.name}.py"],
        "comm": "python3",
        "cgroups": [f"0::/slurm/{job.id}"],
        "env": _environment(job, rank),
    }
    return json_record(wire.RECORD_PROCESS, BEGIN_NS + 1, body, **_image(job, rank))


def _read(ranks: Sequence[tuple[Job, int]], at: int, ktime_ns: int) -> Iterator[bytes]:
    """What is read of all ranks of a node at one of the two moments."""
    for job, rank in ranks:
        image = _image(job, rank)
        yield from _communicator(job, rank, at, ktime_ns, **image)
        durations = wire.METRIC_CALL_DURATION
        launches = [4_000] * (1_000 + 600 * at)
        yield aggregates(ktime_ns, counted(durations, launches, Config(), image, api=LAUNCH))
        waits = {"state": wire.STATE_BLOCKED, "context": wire.CONTEXT_SYNCHRONIZE}
        spent_ns = (10 + 50 * at) * S
        yield times_record(ktime_ns, [times_entry(time_ns=spent_ns, **waits, **image)])
        if job == THROTTLED:
            yield _devices(rank, at, ktime_ns, image["pid"])
    yield counters_record(ktime_ns, counters())


def _communicator(
    job: Job, rank: int, at: int, ktime_ns: int, *, pid: int, program_ktime_ns: int
) -> Iterator[bytes]:
    reading = readings(job, rank)[at]
    recent = bytearray(wire.COLLECTIVE.size * wire.RECENT_COLLECTIVES)
    for number in range(reading.called - wire.RECENT_COLLECTIVES + 1, reading.called + 1):
        place = wire.COLLECTIVE.size * (number % wire.RECENT_COLLECTIVES)
        before_ns = (reading.called - number) * 100 * MS
        values = wire.COLLECTIVE.build(
            number=number,
            count=reading.elements if number == reading.called else ELEMENTS,
            called_ktime_ns=ktime_ns - reading.since_ns - before_ns,
            root=NO_ROOT,
            operation=wire.COLLECTIVE_ALL_REDUCE,
            datatype=BFLOAT16,
            reduction=SUM,
        )
        recent[place : place + len(values)] = values
    all_reduce = wire.COLLECTIVE_ALL_REDUCE
    value = wire.COMMUNICATOR.build(
        id=job.comm,
        called=reading.called,
        completed=reading.completed,
        completed_ktime_ns=ktime_ns - reading.since_ns,
        completions=reading.completed,
        waited_ns=reading.waited_ns,
        made_ktime_ns=MADE_NS,
        rank=rank,
        rank_count=job.ranks,
        recent=bytes(recent),
        **{
            f"calls_{all_reduce}": reading.called,
            f"bytes_{all_reduce}": 2 * ELEMENTS * reading.called,
        },
    )
    key = wire.COMMUNICATOR_KEY.build(program_ktime_ns=program_ktime_ns, handle=0x5000, pid=pid)
    yield from memory_records(wire.RECORD_COMMUNICATORS, ktime_ns, [(key, value)])


def _devices(rank: int, at: int, ktime_ns: int, pid: int) -> bytes:
    """The only device of a node, whose clocks are limited if it is that of the rank in trouble."""
    limited_ns = (500 + 45 * at) * S if rank == CULPRITS[THROTTLED.id] else 0
    gpu = dict(GPU) | {
        "uuid": f"GPU-{rank:08}-6c0a-4c5a-9d0b-9a8c7f6e5d4c",
        "serial_number": str(rank),
        "limited_ns": {"sw_power_cap": 0, "hw_thermal": limited_ns},
        "processes": [{"pid": pid, "memory_bytes": 1 << 30}],
        "parts": [],
    }
    return json_record(wire.RECORD_DEVICES, ktime_ns, {"driver": "580.65.06", "gpus": [gpu]})
