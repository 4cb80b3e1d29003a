"""Decides what unpacks records: the standard library's struct, or NumPy."""

import re
import struct
import time
from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.result import Result
from otel_gpu import wire
from otel_gpu.wire.decoder import decode
from otel_gpu.wire.events import CudaCall

try:
    import numpy as np
except ImportError:
    np = None

RECORDS = 10_000
CODES = {
    "B": "u1",
    "b": "i1",
    "H": "<u2",
    "h": "<i2",
    "I": "<u4",
    "i": "<i4",
    "Q": "<u8",
    "q": "<i8",
}


def run(*, quick: bool = False) -> list[Result]:
    """Decode the same call records into the same immutable events both ways."""
    rounds = 5 if quick else 31
    records = [_record(number) for number in range(RECORDS)]
    by_struct, by_numpy, bare = [], [], []
    for _ in range(rounds):
        by_struct.append(_time(lambda: list(decode(records, Counter()))))
        bare.append(_time(lambda: [wire.CUDA_CALL_RECORD.unpack(record) for record in records]))
        if np is not None:
            by_numpy.append(_time(lambda: _decode_with_numpy(records)))
    value, floor = median(by_struct), median(bare)
    note = "NumPy is not installed, so there is nothing to compare with"
    if by_numpy:
        note = f"NumPy (frombuffer, tolist, the same tuples): {median(by_numpy):,.0f} ns"
    return [
        Result(
            what="decoding a call record with struct",
            value=value,
            unit="ns",
            floor=floor,
            floor_is="struct.unpack alone",
            ratio=value / median(by_numpy) if by_numpy else value / floor,
            bound="a decision (ratio to NumPy)" if by_numpy else "a decision (ratio to the floor)",
            held=None,
            note=note,
        )
    ]


def _record(number: int) -> bytes:
    fields = re.findall(r"(\d*)([a-zA-Z])", wire.CUDA_CALL_RECORD.format)
    values: list[Any] = []
    for count, code in fields:
        if code == "s":
            values.append(b"python3")
        elif code != "x":  # padding
            values += [number % 100] * int(count or 1)
    values[0], values[2] = wire.RECORD_CUDA_CALL, wire.CUDA_CALL_RECORD.size
    return struct.pack(wire.CUDA_CALL_RECORD.format, *values)


def _decode_with_numpy(records: list[bytes]) -> list[CudaCall]:
    kinds = []
    for count, code in re.findall(r"(\d*)([a-zA-Z])", wire.CUDA_CALL_RECORD.format):
        if code in "sx":
            kinds.append(f"{'S' if code == 's' else 'V'}{count}")
        else:
            kinds += [CODES[code]] * int(count or 1)
    layout = np.dtype([(f"f{number}", kind) for number, kind in enumerate(kinds)])
    rows = np.frombuffer(b"".join(records), dtype=layout).tolist()
    # ktime, image, pid, tid, then the call's own fields; as decode() lays them out.
    return [
        CudaCall(
            row[3], row[4], row[5], row[6], *row[7:23], row[23:26], row[26:29], *row[29:34],
            row[-1].decode("utf-8", "replace"),
        )
        for row in rows
    ]  # fmt: skip


def _time(function: Callable[[], object]) -> float:
    start_ns = time.perf_counter_ns()
    function()
    return (time.perf_counter_ns() - start_ns) / RECORDS
