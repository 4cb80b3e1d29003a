"""Samples as OTLP profiles: what is sent is what was taken, read back by the generated classes."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_gpu.errors import ConfigError
from otel_gpu.export.exports import open_exports
from otel_gpu.export.profiles import profiles as profiles_module
from otel_gpu.export.profiles.profile_encoder import ProcessSample, ProfileEncoder
from otel_gpu.export.profiles.profiles import Profiles
from otel_gpu.export.spans.finished import Origin
from otel_gpu.options import Config, ExportConfig
from otel_gpu.wire.frames import Frame, cut_frame
from tests.activities import (
    IDS,
    SECOND,
    T0,
    call,
    call_stack,
    capture,
    counters,
    ended,
    gap,
    image,
    sample,
)
from tests.profiles import read
from tests.receiver import attributes_of

ORIGIN = Origin(Resource({"service.name": "trainer"}), InstrumentationScope("otel_gpu.cpu"))
MS = 1_000_000
INTERVAL_S = 10


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
frames = st.builds(
    Frame,
    st.sampled_from(["cpython", "native"]),
    texts,
    texts,
    st.integers(1, 2**31 - 1),
    texts,
    st.integers(0, 2**64 - 1),
).map(lambda frame: frame if frame.function or frame.file else frame._replace(line=0))
stacks = st.lists(frames, min_size=1, max_size=4).map(
    lambda made: call_stack(hash(tuple(made)) or 1, tuple(made))
)
takens = st.builds(
    ProcessSample,
    st.integers(1, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(1, 3),
    st.sampled_from(["trainer", "loader"]),
    st.lists(texts.filter(bool), max_size=2).map(tuple),
    st.none() | stacks,
    st.just(b"t" * 16),
    st.sampled_from([b"", b"s" * 8]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(takens, min_size=1, max_size=8))
def test_what_is_taken_is_what_is_sent(taken):
    """Every value with its time, thread, stack and span, once."""
    encoder = ProfileEncoder(ORIGIN)
    for one in taken:
        encoder.add(one)
    data = encoder.encode(b"i" * 16).data

    profile, sent = read(data)

    assert len(data) <= encoder.size_bytes
    assert profile.profile_id == b"i" * 16
    assert all(
        profile.time_unix_nano <= unix_ns < profile.time_unix_nano + profile.duration_nano
        for one in sent
        for unix_ns, _ in one.values
    )
    found = Counter(
        (*value, *one.attributes.items(), one.link, *one.frames)
        for one in sent
        for value in one.values
    )
    assert found == Counter(
        (
            one.unix_ns,
            one.weight_ns,
            ("otel_gpu.thread.tid", one.tid),
            ("thread.name", one.comm),
            (one.trace_id, one.span_id) if one.span_id else (b"", b""),
            *(Frame("kernel", name) for name in one.functions),
            *(one.stack.frames if one.stack else ()),
        )
        for one in taken
    )


def test_a_stack_says_what_it_lacks():
    """Frames that were left out have no type, and a stack that is not complete says so."""
    stack = call_stack(7, (Frame("cpython", "f", "a.py", 3), cut_frame(3)), complete=False)
    encoder = ProfileEncoder(ORIGIN)
    for unix_ns in (5, 6):
        encoder.add(ProcessSample(unix_ns, 10, 42, "trainer", (), stack))

    _, (sent,) = read(encoder.encode(b"i" * 16).data)

    assert sent.values == [(5, 10), (6, 10)]
    assert sent.attributes["otel_gpu.stack.complete"] is False
    assert sent.frames == list(stack.frames)


class Gathered:
    """Profiles of a stream, with spans of which it is known which were exported."""

    def __init__(self, *exported, most_bytes=1 << 20):
        self.made = []
        self.profiles = Profiles(
            capture().seed,
            lambda process: Origin(Resource(process.attributes), ORIGIN.scope),
            lambda span_id: span_id in exported,
            lambda made: self.made.append(made.data),
            interval_ns=INTERVAL_S * SECOND,
            most_bytes=most_bytes,
        )

    def take(self, *activities):
        for activity in activities:
            self.profiles.observe(activity)
        return self

    def weights_ns(self):
        """Of each profile, the sum of its values."""
        return [sum(w for one in read(data)[1] for _, w in one.values) for data in self.made]


def test_a_profile_is_made_every_interval_and_at_the_end_of_its_process():
    """Of each process its own; what was taken is in one of them."""
    trainer, loader = image(), image(43)
    gathered = Gathered().take(
        counters(20),
        sample(trainer, 20 * SECOND, stack=call_stack()),
        sample(loader, 20 * SECOND, stack=call_stack(), weight_ns=7),
        counters(29),
        sample(trainer, 29 * SECOND, stack=call_stack()),
    )
    assert gathered.made == []

    gathered.take(counters(30))
    assert gathered.weights_ns() == [10 * MS, 7]
    gathered.take(sample(loader, 31 * SECOND), ended(trainer, 31), ended(loader, 31))
    assert gathered.weights_ns()[2:] == [10 * MS, 10 * MS]
    gathered.profiles.flush()

    requests = [ExportProfilesServiceRequest.FromString(data) for data in gathered.made]
    resources = [attributes_of(one.resource_profiles[0].resource.attributes) for one in requests]
    assert [one["process.pid"] for one in resources] == [42, 43, 42, 43]
    assert len({read(data)[0].profile_id for data in gathered.made}) == 4


def test_a_sample_is_linked_to_the_call_and_the_gap_that_it_was_taken_in():
    """Those that were exported: a link to another one would lead nowhere."""
    trainer = image()
    launch = call(trainer, "cudaLaunchKernel", 6 * SECOND, SECOND)
    quick = call(trainer, "cudaLaunchKernel", 8 * SECOND, SECOND)
    between = gap(trainer, "cudaLaunchKernel", "cudaLaunchKernel", 9 * SECOND, 11 * SECOND)
    root = {"root_start_ktime_ns": 6 * SECOND}
    gathered = Gathered(launch.span_id, between.span_id).take(
        sample(trainer, 6 * SECOND + MS, stack=call_stack(), **root),
        sample(trainer, 8 * SECOND + MS, stack=call_stack(), root_start_ktime_ns=8 * SECOND),
        sample(trainer, 9 * SECOND + MS, stack=call_stack()),
        sample(trainer, 10 * SECOND, stack=call_stack(), tid=77),
        sample(trainer, 12 * SECOND, stack=call_stack()),
        between,
    )
    gathered.profiles.flush()

    _, sent = read(gathered.made[0])

    nothing = (b"", b"")
    links = {unix_ns - T0: one.link for one in sent for unix_ns, _ in one.values}
    assert links == {
        6 * SECOND + MS: (launch.trace_id, launch.span_id),
        8 * SECOND + MS: nothing,
        9 * SECOND + MS: (between.trace_id, between.span_id),
        10 * SECOND: nothing,
        12 * SECOND: nothing,
    }
    assert quick.span_id == IDS.of_call(quick.event)[1]


def test_a_call_may_end_after_the_profile_of_what_was_before():
    """A second is enough for nearly all calls; samples in one are linked all the same."""
    trainer = image()
    launch = call(trainer, "cudaLaunchKernel", 29 * SECOND, 2 * SECOND)
    between = gap(trainer, "cudaLaunchKernel", "cudaFree", 39 * SECOND + MS, 41 * SECOND)
    gathered = Gathered(launch.span_id, between.span_id).take(
        counters(20),
        sample(trainer, 21 * SECOND, stack=call_stack()),
        sample(trainer, 29 * SECOND + MS, stack=call_stack(), root_start_ktime_ns=29 * SECOND),
        counters(30),
        launch,
        sample(trainer, 39 * SECOND + 2 * MS, stack=call_stack()),
        counters(40),
        between,
    )
    gathered.profiles.flush()

    links = [[one.link[1] for one in read(data)[1]] for data in gathered.made]
    assert links == [[b""], [launch.span_id], [between.span_id]]


def test_a_large_profile_is_several():
    """A receiver takes requests up to a size; nothing is lost for that."""
    trainer, gathered = image(), Gathered(most_bytes=20_000)
    for number in range(400):
        frame = Frame("cpython", f"function_{number}", "/app/train.py", number + 1)
        gathered.take(sample(trainer, 10 * SECOND + number, stack=call_stack(number + 1, (frame,))))
    gathered.profiles.flush()

    assert len(gathered.made) > 3
    assert max(map(len, gathered.made)) <= 20_000
    assert sum(gathered.weights_ns()) == 400 * 10 * MS


def test_a_forged_weight_costs_no_profile():
    """A record has 64 bits for it, and a value of OTLP one less: it is as large as can be."""
    trainer = image()
    gathered = Gathered().take(
        sample(trainer, SECOND, stack=call_stack(), weight_ns=2**64 - 1),
        sample(trainer, 2 * SECOND, stack=call_stack(), weight_ns=7),
    )
    gathered.profiles.flush()

    (sent,) = read(gathered.made[0])[1]
    assert [weight_ns for _, weight_ns in sent.values] == [2**63 - 1, 7]


def test_what_waits_is_bounded(monkeypatch):
    """Where no counters come, say in a foreign capture, a number of samples is enough for a profile."""
    monkeypatch.setattr(profiles_module, "_MOST_SAMPLES", 50)
    trainer = image()
    gathered = Gathered().take(
        *(sample(trainer, SECOND + n, stack=call_stack()) for n in range(120))
    )

    assert gathered.weights_ns() == [50 * 10 * MS] * 2


def exporting(endpoint, **more):
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "0.3",
    }
    config = Config(export=ExportConfig(**{"profiles": True, "shutdown_timeout_s": 5.0, **more}))
    return open_exports(config, environ, live=True)


def test_a_receiver_gets_spans_and_the_samples_linked_to_them(receiver):
    """One stream, one endpoint: the profile of a process, with links to spans that are there."""
    trainer = image()
    launch = call(trainer, "cudaLaunchKernel", 6 * SECOND, SECOND)
    with exporting(receiver.http_endpoint) as exports:
        for activity in (
            capture(),
            sample(trainer, 6 * SECOND + MS, stack=call_stack(), root_start_ktime_ns=6 * SECOND),
            launch,
            sample(trainer, 12 * SECOND, stack=call_stack()),
        ):
            exports.observe(activity)

    (request,) = receiver.requests("profiles")
    _, sent = read(request.body)
    spans = {(one.span.trace_id, one.span.span_id) for one in receiver.spans()}
    assert {one.link for one in sent} == {(launch.trace_id, launch.span_id), (b"", b"")}
    assert (launch.trace_id, launch.span_id) in spans
    assert exports.dropped() == {}


def test_profiles_are_sent_only_if_they_are_asked_for(receiver):
    """The signal is in development, and most receivers refuse it."""
    with exporting(receiver.http_endpoint, profiles=False) as exports:
        exports.observe(capture())
        exports.observe(sample(image(), 12 * SECOND, stack=call_stack()))
        exports.observe(call(image(), "cudaLaunchKernel", 6 * SECOND, SECOND))

    assert receiver.requests("traces")
    assert receiver.requests("profiles") == []


@pytest.mark.parametrize(
    ("what", "reason"), [("reject_spans", "rejected_by_receiver"), ("refusing", "endpoint_down")]
)
def test_profiles_that_are_not_delivered_are_counted(receiver, what, reason):
    """By reason, beside spans."""
    with exporting(receiver.http_endpoint) as exports:
        if what == "refusing":
            receiver.refuse(True)
        else:
            receiver.reject_spans = 1
        exports.observe(capture())
        exports.observe(sample(image(), 12 * SECOND, stack=call_stack()))

    assert exports.dropped() == {f"profile_{reason}": 1}


def test_profiles_without_an_endpoint_are_said(caplog):
    """What was asked for is not done: a warning says why."""
    with open_exports(Config(export=ExportConfig(profiles=True)), {}, live=True):
        pass

    assert "no endpoint for profiles is set" in caplog.text


def test_a_wrong_variable_of_profiles_is_refused():
    """As those of the other signals."""
    environ = {"OTEL_EXPORTER_OTLP_PROFILES_PROTOCOL": "smtp", "OTEL_PROFILES_EXPORTER": "otlp"}

    with (
        pytest.raises(ConfigError, match="'smtp' is not supported"),
        open_exports(Config(export=ExportConfig(profiles=True)), environ, live=True),
    ):
        pass
