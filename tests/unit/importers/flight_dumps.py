"""Dumps of Flight Recorders, written as PyTorch writes them."""

import json
import struct

S = 1_000_000_000
T0 = 1_750_000_000 * S
"""When the first collective was called, in Unix nanoseconds."""
STEP = 10_000_000

FRAMES = [
    {
        "name": "all_reduce",
        "filename": "/v/site-packages/torch/distributed/distributed_c10d.py",
        "line": 2501,
    },
    {"name": "reduce_gradients", "filename": "/app/train.py", "line": 42},
    {"name": "<module>", "filename": "/app/train.py", "line": 90},
]
HELD_UP = [
    {
        "name": "all_reduce",
        "filename": "/v/site-packages/torch/distributed/distributed_c10d.py",
        "line": 2501,
    },
    {"name": "log_loss", "filename": "/app/metrics.py", "line": 7},
]


def entry(
    number, *, record=None, name="nccl:all_reduce", sizes=((1024,),), state="completed", **more
):
    """Collective ``number`` of the default group, called 10 ms after the one before it."""
    created = T0 + number * STEP
    is_done = state == "completed"
    return {
        "frames": FRAMES,
        "record_id": number - 1 if record is None else record,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": name,
        "time_created_ns": created,
        "input_sizes": [list(size) for size in sizes],
        "input_dtypes": ["Float"],
        "output_sizes": [list(size) for size in sizes],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": created + 1_000_000 if state != "scheduled" else None,
        "time_discovered_completed_ns": created + 4_000_000 if is_done else None,
        "retired": is_done,
        "timeout_ms": 600_000,
        "is_p2p": False,
    } | more


def dump(entries, *, ranks=(0, 1, 2, 3), groups=None, **more):
    """The dump of one rank."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(ranks))}}
    return {
        "version": "2.10",
        "pg_config": config | (groups or {}),
        "comm_lib_version": "2.27.5",
        "pg_status": {},
        "entries": list(entries),
    } | more


def run(called, *, done, **more):
    """So many collectives, of which the first ``done`` are done."""
    return dump(
        [
            entry(number, state="completed" if number <= done else "started")
            for number in range(1, called + 1)
        ],
        **more,
    )


class TorchPickler:
    """Writes what PyTorch's own pickler writes (protocol 2): containers are named after they are full."""

    def __init__(self):
        self.out = bytearray(b"\x80\x02")
        self._texts = {}
        self._shared = {}
        self._count = 0

    def dump(self, value):
        self._push(value)
        return bytes(self.out + b".")

    def _put(self):
        number = self._count
        self._count += 1
        self.out += b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number)
        return number

    def _get(self, number):
        self.out += b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number)

    def _push(self, value):
        if value is None:
            self.out += b"N"
        elif isinstance(value, bool):
            self.out += b"\x88" if value else b"\x89"
        elif isinstance(value, int):
            self._push_integer(value)
        elif isinstance(value, float):
            self.out += b"G" + struct.pack(">d", value)
        elif isinstance(value, str):
            self._push_text(value)
        elif id(value) in self._shared:
            self._get(self._shared[id(value)])
        else:
            self._push_container(value)

    def _push_integer(self, value):
        if 0 <= value < 256:
            self.out += b"K" + bytes([value])
        elif 0 <= value < 65_536:
            self.out += b"M" + struct.pack("<H", value)
        elif -(1 << 31) <= value < 1 << 31:
            self.out += b"J" + struct.pack("<i", value)
        else:
            self.out += b"\x8a\x08" + struct.pack("<q", value)

    def _push_text(self, value):
        if value in self._texts:
            self._get(self._texts[value])
            return
        data = value.encode()
        self.out += b"X" + struct.pack("<I", len(data)) + data
        self._texts[value] = self._put()

    def _push_container(self, value):
        if isinstance(value, dict):
            self.out += b"}("
            for key, item in value.items():
                self._push(key)
                self._push(item)
            self.out += b"u"
            # Frames are shared between entries.
            if "filename" in value:
                self._shared[id(value)] = self._put()
        elif isinstance(value, tuple):
            for item in value:
                self._push(item)
            self.out += {0: b")", 1: b"\x85", 2: b"\x86", 3: b"\x87"}[len(value)]
        else:
            self.out += b"]("
            for item in value:
                self._push(item)
            self.out += b"e"


def as_torch(made):
    """The bytes of a dump."""
    return TorchPickler().dump(made)


def as_json(made):
    """The JSON of a dump: no stacks, 0 for what is not known, the figures of groups as texts."""
    entries = [
        {key: value if value is not None else 0 for key, value in one.items() if key != "frames"}
        for one in made["entries"]
    ]
    status = {
        group: {key: str(value) for key, value in said.items()}
        for group, said in made["pg_status"].items()
    }
    return json.dumps(made | {"entries": entries, "pg_status": status}).encode()


def write(folder, dumps, form=as_torch):
    """Write the dump of each rank; return the files."""
    paths = []
    for rank, made in dumps.items():
        path = folder / f"nccl_trace_rank_{rank}"
        path.write_bytes(form(made))
        paths.append(path)
    return paths
