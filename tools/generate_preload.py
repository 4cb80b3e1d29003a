"""
Generate the probe table and the bounds of the default histogram layout for ``preload/calls.c``.

``--check`` compares instead of writing, and fails on any difference.
"""

import argparse
import sys
import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from otel_gpu import wire
from otel_gpu.config import Config
from otel_gpu.wire.histogram_layout import duration_bounds_ns, size_bounds_bytes
from otel_gpu.wire.probe_table import COUNTED_APIS, Api

PRELOAD = Path(__file__).resolve().parent.parent / "preload"

PREAMBLE = """\
/* SPDX-License-Identifier: Apache-2.0 */
/* GENERATED from {source} by tools/generate_preload.py. Do not edit. */
/* clang-format off */
#ifndef {guard}
#define {guard}

#include "{header}"
"""
_END = "\n#endif\n"

# They have more arguments than fit into registers: the launches, and what has structures by value
# or lists. A test compares with CUDA's own headers.
_WIDE = frozenset(
    {
        *("cudaLaunchKernel", "cudaLaunchCooperativeKernel"),
        *("cuLaunchKernel", "cuLaunchCooperativeKernel"),
        *("cudaMemcpy2D", "cudaMemcpy2DAsync", "cudaMemcpyBatchAsync", "cuMemcpyBatchAsync"),
        *("cudaMalloc3D", "cudaMalloc3DArray", "cudaLibraryLoadData", "cuLibraryLoadData"),
    }
)
# As in preload/series.h.
_BOUNDS_OF_BITS = 4
_ABOVE_ALL = (1 << 64) - 1
_COLUMNS = (
    *("api", "counts", "family", "size_slot", "size_shift", "height_slot", "stream_slot"),
    *("address_slot", "address_is_output", "copy_kind_slot", "fixed_copy_kind", "launch_shape"),
    *("function_slot", "device_slot", "stream_work"),
)


def wrapped_apis() -> list[Api]:
    """Return the APIs that the preload library wraps, by name."""
    layers = (wire.LAYER_RUNTIME, wire.LAYER_DRIVER)
    wrapped = (api for api in COUNTED_APIS if api.layer in layers)
    return sorted(wrapped, key=lambda api: api.name.encode())


def wide_apis() -> frozenset[str]:
    """Return the names of APIs whose wrappers pass more than six words."""
    return _WIDE


def _rows(apis: Sequence[Api]) -> Iterator[str]:
    yield "\nconst struct row preload_rows[] = {\n"
    for api in apis:
        fields = {**api._asdict(), "api": api.number, "counts": int(api.counted_by_preload)}
        values = ", ".join(f".{name} = {fields[name]}" for name in _COLUMNS if fields[name])
        yield f'\t{{.name = "{api.name}", {values}}},\n'
    yield "};\n"


def _list(apis: Sequence[Api]) -> Iterator[str]:
    yield "\n#define PRELOAD_APIS(NARROW, WIDE) \\\n"
    for number, api in enumerate(apis):
        yield f"\t{'WIDE' if api.name in _WIDE else 'NARROW'}({number}, {api.name}) \\\n"
    launch = next(n for n, api in enumerate(apis) if api.name == "cudaLaunchKernel")
    yield f"\n#define LAUNCH_ROW {launch}\n"


def generate_rows() -> str:
    """Return the text of probe_table.h."""
    apis = wrapped_apis()
    preamble = PREAMBLE.format(
        source="otel_gpu/wire/probe_table.py",
        guard="OTEL_GPU_PRELOAD_PROBE_TABLE_H",
        header="row.h",
    )
    return "".join([preamble, *_rows(apis), *_list(apis), _END])


def _first_buckets(bounds: Sequence[int]) -> list[int]:
    # By how many bits a value has: the bucket of the smallest such value.
    smallest = [0, *(1 << bits for bits in range(64))]
    return [sum(bound < value for bound in bounds) for value in smallest]


def _array(numbers: Sequence[int], suffix: str = "") -> str:
    text = ", ".join(f"{number}{suffix}" for number in numbers)
    return textwrap.fill(text, 90, initial_indent="\t\t", subsequent_indent="\t\t")


def _bounds(name: str, bounds: Sequence[int]) -> str:
    first = _first_buckets(bounds)
    # More than the preload library compares with.
    if any(after - before > _BOUNDS_OF_BITS for before, after in pairwise(first)):
        sys.exit(f"{name}: more than {_BOUNDS_OF_BITS} bounds for values of as many bits")
    return f"""
static const struct bounds {name} = {{
\t.first = {{
{_array(first)},
\t}},
\t.upper = {{
{_array([*bounds, *[_ABOVE_ALL] * _BOUNDS_OF_BITS], "ull")},
\t}},
}};
"""


def generate_bounds() -> str:
    """Return the text of bounds.h."""
    config = Config()
    return (
        PREAMBLE.format(
            source="otel_gpu/wire/histogram_layout.py",
            guard="OTEL_GPU_PRELOAD_BOUNDS_H",
            header="series.h",
        )
        + _bounds("duration_bounds", duration_bounds_ns(config))
        + _bounds("size_bounds", size_bounds_bytes(config))
        + _END
    )


def main() -> None:
    """Write the headers, or check that they are up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when a header differs")
    args = parser.parse_args()
    for name, text in (("probe_table.h", generate_rows()), ("bounds.h", generate_bounds())):
        path = PRELOAD / name
        if not args.check:
            path.write_text(text)
        elif path.read_text() != text:
            sys.exit(f"preload/{name} differs from its sources: run `make preload-tables`")


if __name__ == "__main__":
    main()
