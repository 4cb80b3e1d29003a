"""What a process says of itself to readers outside of it."""

import os
import subprocess
import sys

from otel_gpu.instrumentation.process_context import ProcessContext, encode
from otel_gpu.procfs.process_context import parse_process_context, read_process_context

PROGRAM = """
import os, sys
from otel_gpu.instrumentation.process_context import ProcessContext

instance = {"service.name": "trainer", "otel_gpu.rank": 3, "tags": ("a", "b")}
ProcessContext(lambda: instance | {"pid": os.getpid()})
child = os.fork() if sys.argv[1] == "fork" else 0
if child:
    os.waitpid(child, 0)
else:
    print(os.getpid(), flush=True)
    sys.stdin.readline()
"""


def read_of(how):
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        pid = int(process.stdout.readline())
        read = read_process_context(pid)
        process.communicate("\n")
    return pid, read


RESOURCE = {"service.name": "trainer", "otel_gpu.rank": 3, "tags": ["a", "b"]}


def test_the_agent_reads_the_resource_that_a_process_publishes():
    """Text, numbers and lists arrive as they were."""
    pid, read = read_of("alone")

    assert read == RESOURCE | {"pid": pid}


def test_a_child_of_fork_says_what_it_is_itself():
    """The mapping does not come along, so there is a new one."""
    pid, read = read_of("fork")

    assert read == RESOURCE | {"pid": pid}


def test_a_resource_that_finds_no_room_is_not_published():
    """And nothing of it is."""
    before = read_process_context(os.getpid())
    ProcessContext(lambda: {"text": "x" * 70_000})

    assert read_process_context(os.getpid()) == before


def test_how_threads_are_read_is_said_only_where_they_publish():
    """As OTEP 4947 names it, beside the resource and not in it."""
    payload = encode({"service.name": "x"}, is_thread_context=True)

    assert parse_process_context(payload) == {"service.name": "x"}
    assert b"threadlocal.schema_version" in payload
    assert b"tlsdesc_v1_dev" in payload
    assert b"threadlocal" not in encode({"service.name": "x"}, is_thread_context=False)
