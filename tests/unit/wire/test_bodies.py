"""JSON bodies, checked when they are read."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import ValidationError
from msgspec.json import encode

from otel_gpu import wire
from otel_gpu.capture.host.host_facts import describe_host
from otel_gpu.config import Config
from otel_gpu.procfs.process_facts import read_facts
from otel_gpu.wire import bodies
from otel_gpu.wire.agent_records import json_record
from otel_gpu.wire.decoder import decode
from otel_gpu.wire.histogram_layout import layout_description
from otel_gpu.wire.json_body import BodyType

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
    ("body_type", "body"),
    [
        (bodies.STATUS, b"{}"),
        (bodies.STATUS, b'{"cpu_ns":9223372036854775807,"rejected":{"short":1}}'),
        (bodies.PROBES, b'{"library":"/a","inode":18446744073709551615}'),
        (bodies.PROCESS, b'{"ppid":null,"exe":null,"command_args":[],"env":{}}'),
        (bodies.PROCESS, b'{"comm":"\\ud83d\\ude00"}'),
        (bodies.PROBES, b'{"library":"/usr/lib/libcuda.so.1","failed":["cuInit"]}'),
        (bodies.STATUS, b'{"stacks":{"resolved":7}}'),
        (bodies.USER_STACK, user_stack()),
        (bodies.USER_STACK, user_stack(frames=[])),
        (bodies.USER_STACK, user_stack(frames=[PYTHON] * 257)),
        (bodies.USER_STACK, user_stack(frames=[["cut", "9 frames left out", "", 0, "", 0]])),
        (bodies.USER_STACK, user_stack(frames=[["kernel", "x" * 513, "", 0, "", 0]])),
        (bodies.RESOURCE, resource()),
        (bodies.RESOURCE, resource(is_remote=True, peers=[1, 4294967295], name="x" * 9000)),
        (bodies.PROCESS, b'{"comm":"hog","owner":null,"exe":null,"cgroups":[]}'),
        (bodies.CAPTURE, capture_with()),
        (bodies.CAPTURE, capture_with({"kind": "explicit", "bounds_ns": [1, 2, 500]})),
    ],
)
def test_a_body_of_the_right_shape_is_let_through(body_type, body):
    """A good body is what JSON states."""
    assert json.loads(encode(body_type.parse(body))) == json.loads(body)


def test_fields_that_this_version_does_not_know_are_left_out():
    """Nothing that was not checked gets past the check."""
    body = b'{"comm":"x","a field of a later version":[1.5,true,null,1e999]}'

    assert bodies.PROCESS.parse(body) == {"comm": "x"}


def test_what_this_agent_writes_is_let_through():
    """The facts and the layout that live capture records pass the check of a replay."""
    facts = read_facts(1)
    layout = layout_description(Config())
    capture = {"host": describe_host(), "layout": layout}

    assert bodies.PROCESS.parse(json.dumps(facts).encode()) == facts
    assert bodies.CAPTURE.parse(json.dumps(capture).encode()) == capture


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff{}",
        b"{} {}",
        b'{"cpu_ns":NaN}',
        b'{"cpu_ns":Infinity}',
        b'{"cpu_ns":1e999}',
        b'{"cpu_ns":18446744073709551616}',
        b'{"cpu_ns":-9223372036854775809}',
        b'{"cpu_ns":' + b"9" * 100_000 + b"}",
        b'{"half of a pair":"\\ud83d"}',
        b'{"\\udc00":1}',
        b'{"off":{"deep":{}}}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_what_is_not_json_or_fits_no_exporter_is_refused(body):
    """Numbers and text that no exporter could send are as bad as bytes that are not JSON."""
    with pytest.raises(ValueError):  # noqa: PT011 - the words are the JSON module's own
        bodies.STATUS.parse(body)


@pytest.mark.parametrize(
    ("body_type", "body", "where"),
    [
        (bodies.STATUS, b"[]", "Expected `object`"),
        (bodies.STATUS, b"null", "Expected `object`"),
        (bodies.STATUS, b'{"cpu_ns":"1"}', "\\$.cpu_ns"),
        (bodies.STATUS, b'{"cpu_ns":true}', "\\$.cpu_ns"),
        (bodies.STATUS, b'{"rejected":{"short":null}}', "\\$.rejected"),
        (bodies.STATUS, b'{"cpu_ns":-1}', "cpu_ns"),
        (bodies.STATUS, b'{"dropped":{"queue_full":9223372036854775808}}', ">= 0|<= "),
        (bodies.STATUS, b'{"stacks":{"resolved":-1}}', ">= 0|<= "),
        (bodies.STATUS, b'{"stacks":{"resolved":"7"}}', "\\$.stacks"),
        (bodies.USER_STACK, b"{}", "missing required field `stack"),
        (bodies.USER_STACK, user_stack(stack=0), "stack"),
        (bodies.USER_STACK, user_stack(stack=-1), "stack"),
        (bodies.USER_STACK, user_stack(complete=1), "complete"),
        (bodies.USER_STACK, user_stack(native="guessed"), "native"),
        (bodies.USER_STACK, user_stack(python=None), "\\$.python"),
        (bodies.USER_STACK, user_stack(python="maybe"), "python"),
        (bodies.USER_STACK, user_stack(frames={}), "\\$.frames"),
        (bodies.USER_STACK, user_stack(frames=["main"]), "\\$.frames"),
        (bodies.USER_STACK, user_stack(frames=[PYTHON] * 258), "frames"),
        (bodies.USER_STACK, user_stack(frames=[PYTHON[:5]]), "frames"),
        (bodies.USER_STACK, user_stack(frames=[[*PYTHON, 0]]), "frames"),
        (bodies.USER_STACK, user_stack(frames=[["jvm", *PYTHON[1:]]]), "frames"),
        (bodies.USER_STACK, user_stack(frames=[["cpython", 5, *PYTHON[2:]]]), "frames"),
        (bodies.USER_STACK, user_stack(frames=[["cpython", "x" * 514, *PYTHON[2:]]]), "frames"),
        (bodies.USER_STACK, user_stack(frames=[[*PYTHON[:3], -1, "", 0]]), "frames"),
        (bodies.USER_STACK, user_stack(frames=[[*PYTHON[:3], True, "", 0]]), "frames"),
        (bodies.USER_STACK, user_stack(frames=[[*PYTHON[:3], 1 << 31, "", 0]]), "frames"),
        (bodies.USER_STACK, user_stack(frames=[[*PYTHON[:5], -1]]), "frames"),
        (bodies.USER_STACK, user_stack(frames=[[*PYTHON[:5], 1.5]]), "frames"),
        (bodies.RESOURCE, b'{"kind":"tcp"}', "missing required field `resource"),
        (bodies.RESOURCE, resource(resource=0), "resource"),
        (bodies.RESOURCE, resource(resource=1 << 32), "resource"),
        (bodies.RESOURCE, resource(kind="quic"), "kind"),
        (bodies.RESOURCE, resource(name=5), "\\$.name"),
        (bodies.RESOURCE, resource(is_remote=1), "is_remote"),
        (bodies.RESOURCE, resource(is_incoming="no"), "is_incoming"),
        (bodies.RESOURCE, resource(retransmits=-1), "retransmits"),
        (bodies.RESOURCE, resource(retransmits=1 << 63), "retransmits"),
        (bodies.RESOURCE, resource(peers=[0]), "peers"),
        (bodies.RESOURCE, resource(peers=[1 << 32]), "peers"),
        (bodies.RESOURCE, resource(peers=[1] * 65), "peers"),
        (bodies.PROCESS, b'{"command_args":"hog"}', "\\$.command_args"),
        (bodies.PROCESS, b'{"command_args":"python"}', "\\$.command_args"),
        (bodies.PROCESS, b'{"cgroups":[1]}', "\\$.cgroups"),
        (bodies.PROCESS, b'{"env":[]}', "\\$.env"),
        (bodies.PROBES, b"{}", "missing required field `library"),
        (bodies.PRESSURE, b'{"psi":5}', "psi"),
        (bodies.PRESSURE, b'{"psi":{"cpu":3}}', "psi"),
        (bodies.PRESSURE, b'{"load1":"high"}', "load1"),
        (bodies.PRESSURE, b'{"load1":1e18}', "load1"),
        (bodies.PRESSURE, b'{"cpus":true}', "cpus"),
        (bodies.PRESSURE, b'{"cgroups":{"/a":{"throttled_ns":-1}}}', "cgroups"),
        (bodies.PRESSURE, b'{"swap_in_pages":-5}', "swap_in_pages"),
        (bodies.MEMORY_MAP, b'{"blocks":7}', "blocks"),
        (bodies.MEMORY_MAP, b'{"blocks":[[true,1,1]]}', "blocks"),
        (bodies.STATUS, b'{"cache_bytes":{"stacks":-1}}', "cache_bytes"),
        (bodies.CAPTURE, b'{"host":{}}', "missing required field `layout"),
        (bodies.CAPTURE, b'{"host":{"name":1},"layout":{}}', "\\$.host.name"),
        (bodies.CAPTURE, b'{"host":{},"layout":{}}', "layout"),
        (bodies.CAPTURE, capture_with({"kind": "linear"}), "layout"),
        (bodies.CAPTURE, capture_with({"kind": "exponential", "scale": 2}), "layout"),
        (bodies.CAPTURE, capture_with({**BUCKETS, "scale": 21}), "layout"),
        (bodies.CAPTURE, capture_with({**BUCKETS, "offset": 1 << 40}), "layout"),
        (bodies.CAPTURE, capture_with(sizes={"kind": "explicit"}), "layout"),
        (
            bodies.CAPTURE,
            capture_with(sizes={"kind": "explicit", "bounds_bytes": [2, 1]}),
            "layout",
        ),
        (
            bodies.CAPTURE,
            capture_with(sizes={"kind": "explicit", "bounds_bytes": list(range(192))}),
            "layout",
        ),
    ],
)
def test_a_body_of_the_wrong_shape_is_refused_where_it_is_wrong(body_type, body, where):
    """JSON that is not what the kind holds is refused, and the message names the field."""
    with pytest.raises(ValidationError, match=where):
        body_type.parse(body)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
)


@given(
    st.sampled_from([one for one in vars(bodies).values() if isinstance(one, BodyType)]),
    st.binary() | JSON_VALUES.map(json.dumps),
)
def test_no_body_gets_past_the_check_in_another_way(body_type, body):
    """Any body is parsed, or refused with one error."""
    encoded = body.encode() if isinstance(body, str) else body
    try:
        parsed = body_type.parse(encoded)
    except ValueError:
        return
    json.dumps(json.loads(encode(parsed)), ensure_ascii=False, allow_nan=False).encode()


def test_names_of_the_kernel_s_functions_are_kept_once():
    """A host has thousands of stacks, and some hundred functions in them."""
    names = ["futex_wait_queue", "do_futex"]
    records = [
        json_record(wire.RECORD_STACK, 7, {"kernel_stack": number, "functions": names})
        for number in (1, 2)
    ]
    one, other = decode(records, Counter())

    assert one.functions == ("futex_wait_queue", "do_futex")
    assert all(
        first is second for first, second in zip(one.functions, other.functions, strict=True)
    )
