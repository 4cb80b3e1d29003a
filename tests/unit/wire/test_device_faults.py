"""The record of an error of a device, which may come from anywhere."""

import json
from collections import Counter

import pytest

from otel_gpu import wire
from otel_gpu.wire.agent_records import json_record
from otel_gpu.wire.decoder import decode
from otel_gpu.wire.device_faults import DeviceFault
from otel_gpu.wire.event_text import describe

REPORTED = {"reported_by": "kernel_log", "xid": 79, "bus_id": "0000:3b:00"}


def read(body):
    """The events of a record, and why there are none."""
    rejected = Counter()
    record = json_record(wire.RECORD_DEVICE_FAULT, 7, body, pid=42, program_ktime_ns=5)
    return list(decode([record], rejected)), dict(rejected)


def test_what_is_not_reported_is_empty():
    """And the process is that of the header."""
    assert read(REPORTED) == (
        [DeviceFault(7, 5, 42, "kernel_log", 79, "0000:3b:00", 0, "", 1, "")],
        {},
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"reported_by": "a friend"},
        {"xid": -1},
        {"xid": 1 << 32},
        {"xid": "79"},
        {"pid": -1},
        {"times": 0},
        {"times": True},
        {"message": "x" * 1025},
        {"name": "x" * 1025},
        {"bus_id": "x" * 1025},
        {"bus_id": None},
        {"message": ["x"]},
    ],
)
def test_what_no_driver_reports_is_refused(wrong):
    """With a reason that is counted."""
    assert read(REPORTED | wrong) == ([], {"bad_body": 1})


@pytest.mark.parametrize("lacking", sorted(REPORTED))
def test_what_is_needed_has_to_be_there(lacking):
    """The device, the error and its source."""
    body = {name: value for name, value in REPORTED.items() if name != lacking}
    assert read(body) == ([], {"bad_body": 1})


def test_its_line_cannot_steer_a_terminal():
    """Whatever a program called itself."""
    body = json.loads(json.dumps(REPORTED | {"name": "x\x1b[2J\n", "message": "\u202e"}))
    ((event,), _) = read(body)
    (line,) = describe(event)
    assert line.isascii()
    assert line.isprintable()
    assert 'reported_name="x\\u001b[2J\\n"' in line
