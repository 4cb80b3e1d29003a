"""
Runs the benchmarks: ``python -m benchmarks [--quick] [NAME...]``.

Each prints a figure, the floor measured in the same run, their ratio and the bound.
"""

import argparse
import importlib
import sys

from benchmarks.host import describe_host

NAMES = (
    "call_overhead",
    "probe_sites",
    "preload",
    "collectives",
    "found_steps",
    "context_switch",
    "counting",
    "agent_cpu",
    "startup",
    "memory",
    "explain_memory",
    "memory_snapshot",
    "torch_trace",
    "trace_analysis",
    "store",
    "aggregates",
    "decoding",
    "outage",
    "symbols",
    "unwinding",
    "stacks",
    "on_cpu",
    "blocks",
    "busy_threads",
    "thread_context",
)


def main() -> int:
    """Run what was asked for; the exit code is 1 when a bound was not held."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"there is no {', '.join(sorted(unknown))}; known: {', '.join(NAMES)}")
    print(describe_host(), flush=True)
    held = True
    for name in arguments.names or NAMES:
        for result in importlib.import_module(f"benchmarks.{name}").run(quick=arguments.quick):
            print(result.line(), flush=True)
            held = held and result.held is not False
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
