"""JSON bodies, checked when they are read."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu import wire
from otel_gpu.capture.host.clocks import describe_host
from otel_gpu.config import Config
from otel_gpu.procfs.process_facts import read_facts
from otel_gpu.wire.agent_records import json_record
from otel_gpu.wire.bodies import parse_body
from otel_gpu.wire.decoder import decode
from otel_gpu.wire.histogram_layout import layout_description

BUCKETS = {"kind": "exponential", "scale": 2, "offset": -120}


PYTHON = ["cpython", "main", "train.py", 74, "", 0]
NATIVE = ["native", "", "", 0, "libtorch.so", 18446744073709551615]


def user_stack(**changes):
    body = {
        "stack": 5,
        "complete": True,
        "native": "eh_frame",
        "python": "ok",
        "frames": [NATIVE, PYTHON],
    }
    return json.dumps(body | changes).encode()


def resource(**changes):
    return json.dumps({"resource": 7, "kind": "tcp"} | changes).encode()


def capture_with(durations=BUCKETS, sizes=BUCKETS):
    return json.dumps({"host": {}, "layout": {"durations": durations, "sizes": sizes}}).encode()


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (wire.RECORD_STATUS, b"{}"),
        (wire.RECORD_STATUS, b'{"cpu_ns":9223372036854775807,"rejected":{"short":1}}'),
        (wire.RECORD_PROBES, b'{"library":"/a","inode":18446744073709551615}'),
        (wire.RECORD_PROCESS, b'{"ppid":null,"exe":null,"command_args":[],"env":{}}'),
        (wire.RECORD_PROCESS, b'{"comm":"\\ud83d\\ude00"}'),
        (wire.RECORD_PROCESS, b'{"a field of a later version":[1.5,true,null]}'),
        (wire.RECORD_PROBES, b'{"library":"/usr/lib/libcuda.so.1","failed":["cuInit"]}'),
        (wire.RECORD_STATUS, b'{"stacks":{"resolved":7}}'),
        (wire.RECORD_USER_STACK, user_stack()),
        (wire.RECORD_USER_STACK, user_stack(frames=[])),
        (wire.RECORD_USER_STACK, user_stack(frames=[PYTHON] * 257)),
        (wire.RECORD_USER_STACK, user_stack(frames=[["cut", "9 frames left out", "", 0, "", 0]])),
        (wire.RECORD_USER_STACK, user_stack(frames=[["kernel", "x" * 513, "", 0, "", 0]])),
        (wire.RECORD_RESOURCE, resource()),
        (wire.RECORD_RESOURCE, resource(is_remote=True, peers=[1, 4294967295], name="x" * 9000)),
        (wire.RECORD_CULPRIT, b'{"comm":"hog","owner":null,"exe":null,"cgroups":[]}'),
        (wire.RECORD_CAPTURE, capture_with()),
        (wire.RECORD_CAPTURE, capture_with({"kind": "explicit", "bounds_ns": [1, 2, 500]})),
    ],
)
def test_a_body_of_the_right_shape_is_let_through(kind, body):
    """A good body is what JSON says it is."""
    assert parse_body(kind, body) == json.loads(body)


def test_what_this_agent_writes_is_let_through():
    """The facts and the layout that live capture records pass the check of a replay."""
    facts = read_facts(1)
    layout = layout_description(Config())
    capture = {"host": describe_host(), "layout": layout}

    assert parse_body(wire.RECORD_PROCESS, json.dumps(facts).encode()) == facts
    assert parse_body(wire.RECORD_CAPTURE, json.dumps(capture).encode()) == capture


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff{}",
        b"{} {}",
        b'{"cpu_ns":NaN}',
        b'{"cpu_ns":Infinity}',
        b'{"ratio":1e999}',
        b'{"cpu_ns":18446744073709551616}',
        b'{"cpu_ns":-9223372036854775809}',
        b'{"cpu_ns":' + b"9" * 100_000 + b"}",
        b'{"half of a pair":"\\ud83d"}',
        b'{"\\udc00":1}',
        b'{"deep":' + b"[" * 16 + b"]" * 16 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_what_is_not_json_or_fits_no_exporter_is_refused(body):
    """Numbers and text that no exporter could send are as bad as bytes that are not JSON."""
    with pytest.raises(ValueError):  # noqa: PT011 - the words are the JSON module's own
        parse_body(wire.RECORD_STATUS, body)


@pytest.mark.parametrize(
    ("kind", "body", "where"),
    [
        (wire.RECORD_STATUS, b"[]", "body has"),
        (wire.RECORD_STATUS, b"null", "body has"),
        (wire.RECORD_STATUS, b'{"cpu_ns":"1"}', "body.cpu_ns"),
        (wire.RECORD_STATUS, b'{"cpu_ns":true}', "body.cpu_ns"),
        (wire.RECORD_STATUS, b'{"rejected":{"short":null}}', "body.rejected"),
        (wire.RECORD_STATUS, b'{"cpu_ns":-1}', "counts"),
        (wire.RECORD_STATUS, b'{"dropped":{"queue_full":9223372036854775808}}', "counts"),
        (wire.RECORD_STATUS, b'{"stacks":{"resolved":-1}}', "counts"),
        (wire.RECORD_STATUS, b'{"stacks":{"resolved":"7"}}', "body.stacks"),
        (wire.RECORD_USER_STACK, b"{}", "lacks stack"),
        (wire.RECORD_USER_STACK, user_stack(stack=0), "stack"),
        (wire.RECORD_USER_STACK, user_stack(stack=-1), "stack"),
        (wire.RECORD_USER_STACK, user_stack(complete=1), "stack"),
        (wire.RECORD_USER_STACK, user_stack(native="guessed"), "stack"),
        (wire.RECORD_USER_STACK, user_stack(python=None), "body.python"),
        (wire.RECORD_USER_STACK, user_stack(python="maybe"), "stack"),
        (wire.RECORD_USER_STACK, user_stack(frames={}), "body.frames"),
        (wire.RECORD_USER_STACK, user_stack(frames=["main"]), "body.frames"),
        (wire.RECORD_USER_STACK, user_stack(frames=[PYTHON] * 258), "stack"),
        (wire.RECORD_USER_STACK, user_stack(frames=[PYTHON[:5]]), "stack"),
        (wire.RECORD_USER_STACK, user_stack(frames=[[*PYTHON, 0]]), "stack"),
        (wire.RECORD_USER_STACK, user_stack(frames=[["jvm", *PYTHON[1:]]]), "stack"),
        (wire.RECORD_USER_STACK, user_stack(frames=[["cpython", 5, *PYTHON[2:]]]), "stack"),
        (wire.RECORD_USER_STACK, user_stack(frames=[["cpython", "x" * 514, *PYTHON[2:]]]), "stack"),
        (wire.RECORD_USER_STACK, user_stack(frames=[[*PYTHON[:3], -1, "", 0]]), "stack"),
        (wire.RECORD_USER_STACK, user_stack(frames=[[*PYTHON[:3], True, "", 0]]), "stack"),
        (wire.RECORD_USER_STACK, user_stack(frames=[[*PYTHON[:3], 1 << 31, "", 0]]), "stack"),
        (wire.RECORD_USER_STACK, user_stack(frames=[[*PYTHON[:5], -1]]), "stack"),
        (wire.RECORD_USER_STACK, user_stack(frames=[[*PYTHON[:5], 1.5]]), "stack"),
        (wire.RECORD_RESOURCE, b'{"kind":"tcp"}', "lacks resource"),
        (wire.RECORD_RESOURCE, resource(resource=0), "resource"),
        (wire.RECORD_RESOURCE, resource(resource=1 << 32), "resource"),
        (wire.RECORD_RESOURCE, resource(kind="quic"), "resource"),
        (wire.RECORD_RESOURCE, resource(name=5), "body.name"),
        (wire.RECORD_RESOURCE, resource(is_remote=1), "resource"),
        (wire.RECORD_RESOURCE, resource(is_incoming="no"), "resource"),
        (wire.RECORD_RESOURCE, resource(retransmits=-1), "resource"),
        (wire.RECORD_RESOURCE, resource(retransmits=1 << 63), "resource"),
        (wire.RECORD_RESOURCE, resource(peers=[0]), "resource"),
        (wire.RECORD_RESOURCE, resource(peers=[1 << 32]), "resource"),
        (wire.RECORD_RESOURCE, resource(peers=[1] * 65), "resource"),
        (wire.RECORD_CULPRIT, b'{"command_args":"hog"}', "body.command_args"),
        (wire.RECORD_PROCESS, b'{"command_args":"python"}', "body.command_args"),
        (wire.RECORD_PROCESS, b'{"cgroups":[1]}', "body.cgroups"),
        (wire.RECORD_PROCESS, b'{"env":[]}', "body.env"),
        (wire.RECORD_PROBES, b"{}", "lacks library"),
        (wire.RECORD_CAPTURE, b'{"host":{}}', "lacks layout"),
        (wire.RECORD_CAPTURE, b'{"host":{"name":1},"layout":{}}', "body.host.name"),
        (wire.RECORD_CAPTURE, b'{"host":{},"layout":{}}', "layout"),
        (wire.RECORD_CAPTURE, capture_with({"kind": "linear"}), "layout"),
        (wire.RECORD_CAPTURE, capture_with({"kind": "exponential", "scale": 2}), "layout"),
        (wire.RECORD_CAPTURE, capture_with({**BUCKETS, "scale": 21}), "layout"),
        (wire.RECORD_CAPTURE, capture_with({**BUCKETS, "offset": 1 << 40}), "layout"),
        (wire.RECORD_CAPTURE, capture_with(sizes={"kind": "explicit"}), "layout"),
        (
            wire.RECORD_CAPTURE,
            capture_with(sizes={"kind": "explicit", "bounds_bytes": [2, 1]}),
            "layout",
        ),
        (
            wire.RECORD_CAPTURE,
            capture_with(sizes={"kind": "explicit", "bounds_bytes": list(range(192))}),
            "layout",
        ),
    ],
)
def test_a_body_of_the_wrong_shape_is_refused_where_it_is_wrong(kind, body, where):
    """JSON that is not what the kind holds is refused, and the message says where."""
    with pytest.raises(TypeError, match=where):
        parse_body(kind, body)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
)


@given(
    st.sampled_from([258, 256, 262, 263, 267, 268, 269]), st.binary() | JSON_VALUES.map(json.dumps)
)
def test_no_body_gets_past_the_check_in_another_way(kind, body):
    """Any body is parsed, or refused with one of the two errors."""
    encoded = body.encode() if isinstance(body, str) else body
    try:
        parsed = parse_body(kind, encoded)
    except (ValueError, TypeError):
        return
    assert isinstance(parsed, dict)
    json.dumps(parsed, ensure_ascii=False, allow_nan=False).encode()


def test_names_of_the_kernel_s_functions_are_kept_once():
    """A host has thousands of stacks, and some hundred functions in them."""
    bodies = [{"kernel_stack": n, "functions": ["futex_wait_queue", "do_futex"]} for n in (1, 2)]
    records = [json_record(wire.RECORD_STACK, 7, body) for body in bodies]
    one, other = decode(records, Counter())

    assert one.functions == ("futex_wait_queue", "do_futex")
    assert all(
        first is second for first, second in zip(one.functions, other.functions, strict=True)
    )
