"""Traces of torch.profiler: what is whole is read, and what is not is counted by reason."""

import gzip
import json
import math
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_gpu import pipeline
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.errors import RecordingError
from otel_gpu.explain.explainer import Explainer
from otel_gpu.importers import open_capture
from otel_gpu.importers.torch_trace import rows, scanner, text
from otel_gpu.options import Config
from otel_gpu.report import json_form
from otel_gpu.report.collector import Collector
from otel_gpu.wire.device_activity import HostWork, Work
from otel_gpu.wire.events import Capture, Clock, DeviceRead
from tests.schemas import REPORT
from tests.unit.importers.traces import T0_US, call, host, kernel, step, trace, write


def explain(path):
    """The document of a trace, or of an export of Nsight Systems, which its schema allows."""
    kind = "nsys" if path.suffix == ".sqlite" else "torch-trace"
    with open_capture(kind, path, Config()) as capture:
        collector = Collector(Explainer())
        pipeline.process_events(capture.events(), Enricher(), [collector])
        document = collector.finish(str(path), capture.counts.notes)
    REPORT.validate(json_form.make_document(document))
    return document


@pytest.fixture
def read(tmp_path):
    """What is read of one trace, and the account of it."""

    def of(made, name="trace.json"):
        with open_capture("torch-trace", write(tmp_path / name, made), Config()) as capture:
            *_, found = capture.events()
            return found.trace, capture.counts

    return of


HEALTHY = [
    step(1, 0, 100),
    host("aten::mm", 5, 20, **{"Input Dims": [[4, 8], [8, 4]], "Input type": ["float", "float"]}),
    call("cudaLaunchKernel", 10, 5, 77),
    kernel(30, 40, 77, "sgemm", bytes=0, **{"est. achieved occupancy %": 50, "blocks per SM": 2.5}),
    kernel(75, 5, 78, "Memcpy HtoD (Pageable -> Device)", bytes=4096),
]


def test_a_trace_becomes_rows(read):
    """Who did what when, in nanoseconds, and which call enqueued it."""
    found, tally = read(trace(HEALTHY, distributedInfo={"rank": 1, "world_size": 2}))

    done, on_host = found.activities, found.host
    assert list(done.kinds) == [Work.KERNEL, Work.COPY]
    assert [found.names[number] for number in done.names] == [
        "sgemm",
        "Memcpy HtoD (Pageable -> Device)",
    ]
    assert list(done.starts_ns) == [(T0_US + 30) * 1_000, (T0_US + 75) * 1_000]
    assert list(done.durations_ns) == [40_000, 5_000]
    assert list(done.correlations) == [77, 78]
    assert list(done.sizes_bytes) == [0, 4096]
    assert list(done.streams) == [7, 7]
    assert (done.occupancies[0], done.blocks[0]) == (0.5, 2.5)
    assert list(on_host.kinds) == [HostWork.ANNOTATION, HostWork.OPERATION, HostWork.CALL]
    assert on_host.correlations[2] == 77
    assert found.shapes[on_host.shapes[1]] == "[[4, 8], [8, 4]] ['float', 'float']"
    assert (found.rank, found.ranks, found.is_dated) == (1, 2, True)
    assert tally.taken["activities of devices"] == 2
    assert not tally.rejected


def test_events_are_those_of_an_import(tmp_path):
    """First what it is, then the clock, then what was read, at its end."""
    path = write(tmp_path / "trace.json", trace(HEALTHY))
    with open_capture("torch-trace", path, Config()) as capture:
        first, clock, read = capture.events()

    assert isinstance(first, Capture)
    assert (first.info["mode"], first.ktime_ns) == ("import", T0_US * 1_000)
    assert clock == Clock(T0_US * 1_000, T0_US * 1_000)
    assert isinstance(read, DeviceRead)
    assert read.ktime_ns == (T0_US + 100) * 1_000


def test_categories_of_2021_are_read(read):
    """Names with capitals, threads and streams as text, and operations that are steps."""
    old = [
        {"ph": "X", "cat": "Operator", "name": "aten::mm", "pid": 9, "tid": "9", "ts": 5, "dur": 9},
        {"ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": "9", "ts": 6,
         "dur": 2, "args": {"correlation": 3}},
        {"ph": "X", "cat": "Kernel", "name": "k", "pid": 0, "tid": "stream 7", "ts": 9, "dur": 4,
         "args": {"device": 0, "correlation": 3}},
        {"ph": "X", "cat": "Memcpy", "name": "Memcpy DtoH", "pid": 0, "tid": "stream 7", "ts": 14,
         "dur": 1, "args": {"device": 0, "stream": 7, "bytes": 8}},
        {"ph": "X", "cat": "Memset", "name": "Memset", "pid": 0, "tid": "stream 7", "ts": 16,
         "dur": 1, "args": {"device": 0, "stream": 7}},
    ]  # fmt: skip

    found, tally = read(trace(old))

    assert list(found.activities.kinds) == [Work.KERNEL, Work.COPY, Work.FILL]
    assert list(found.activities.streams) == [7, 7, 7]
    assert [(one.pid, one.tid) for one in found.threads] == [(0, 0), (9, 9)]
    assert (found.is_dated, len(tally.notes)) == (False, 1)


@pytest.mark.parametrize(
    ("harm", "reason", "kept"),
    [
        pytest.param(lambda made: made[: made.index('"sgemm"')], scanner.NOT_CLOSED, 3, id="cut"),
        pytest.param(
            lambda made: made.replace('"sgemm"', '"s"gem"m"'), scanner.DAMAGED, 4, id="quotes"
        ),
        pytest.param(
            lambda made: made.replace('"sgemm"', r'"s\gemm"'), scanner.DAMAGED, 4, id="backslash"
        ),
        pytest.param(
            lambda made: made.replace('"Memcpy', '"Mem"cpy'), scanner.LAST_DAMAGED, 4, id="last"
        ),
        pytest.param(
            lambda made: made[: made.index('"Memcpy')], scanner.NOT_CLOSED, 4, id="last-is-cut"
        ),
        pytest.param(lambda made: made.replace("sgemm", "s\x01ge\nmm"), None, 5, id="controls"),
        pytest.param(
            lambda made: made.replace('"dur": 40', '"dur": NaN'),
            "events whose times are no numbers", 4, id="nan",
        ),
        pytest.param(
            lambda made: made.replace('"dur": 40', f'"dur": {1 << 64}'),
            "events of impossible durations", 4, id="overflow",
        ),
        pytest.param(
            lambda made: made.replace('"dur": 40', '"dur": -1'),
            "events of impossible durations", 4, id="negative",
        ),
        pytest.param(
            lambda made: made.replace('"dur": 40', f'"dur": {"9" * 5_000}'),
            scanner.DAMAGED, 4, id="endless-number",
        ),
        pytest.param(
            lambda made: made.replace(f'"ts": {T0_US + 30}', '"ts": 0'),
            "activities of a device at time 0", 4, id="time-0",
        ),
        pytest.param(
            lambda made: made.replace(f'"ts": {T0_US + 30}', f'"ts": {1 << 64}'),
            "events at impossible times", 4, id="time-beyond-64-bits",
        ),
        pytest.param(
            lambda made: made.replace('"correlation": 77', f'"correlation": {1 << 64}'), None, 5,
            id="number-beyond-64-bits",
        ),
        pytest.param(
            lambda made: made.replace('"ts"', '"when"', 1),
            "events without what they need", 4, id="no-time",
        ),
        pytest.param(
            lambda made: made.replace('"traceEvents": [', '"traceEvents": [7, [], {},'),
            "values that are no events", 5, id="no-events",
        ),
        pytest.param(
            lambda made: made.replace("},\n  {", "}{"), None, 5, id="commas-are-missing"
        ),
        pytest.param(
            lambda made: made.replace('"schemaVersion": 1', '"schemaVersion": }'),
            "values beside the events", 5, id="head",
        ),
        pytest.param(
            lambda made: made.replace('"sgemm"', "[" * 200_000), scanner.DAMAGED, 4, id="nested"
        ),
    ],
)  # fmt: skip
def test_damage_costs_itself_only(read, harm, reason, kept):
    """What stands behind it is read, and what it cost is said."""
    whole = json.dumps(trace(HEALTHY), indent=1)

    found, tally = read(harm(whole))

    assert len(found.activities) + len(found.host) == kept
    assert (reason in tally.rejected) == (reason is not None)
    assert tally.rejected[reason] >= (reason is not None)
    assert found.rejected == tally.rejected


def test_bytes_that_are_no_text_are_replaced(tmp_path):
    """A name with bytes of another code is still a name."""
    path = tmp_path / "trace.json"
    path.write_bytes(json.dumps(trace(HEALTHY)).encode().replace(b"sgemm", b"s\xff\xfegemm"))

    with open_capture("torch-trace", path, Config()) as capture:
        *_, read = capture.events()

    assert "s\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}gemm" in set(read.trace.names)


def test_time_base_is_read_from_the_end(read):
    """Times are after ``baseTimeNanoseconds``, which stands behind the events."""
    made = trace(HEALTHY)
    for one in made["traceEvents"]:
        one["ts"] -= T0_US - 1_000
    made |= {"baseTimeNanoseconds": (T0_US - 1_000) * 1_000, "traceName": "x"}

    found, _ = read(made)

    assert found.base_unix_ns + found.activities.starts_ns[0] == (T0_US + 30) * 1_000
    assert found.is_dated


@pytest.mark.parametrize("size", [200, 1 << 16])
@pytest.mark.parametrize("form", ["{}", '{{"traceEvents": {}, "baseTimeNanoseconds": 7, "x": [{{}}], "distributedInfo": {{"rank": 3}}}}'])  # fmt: skip
def test_what_stands_behind_a_damaged_last_event_is_read(read, monkeypatch, form, size):
    """Whether the window still holds the damage or not; and it is no file that ends early."""
    monkeypatch.setattr(scanner, "MOST_EVENTS_CHARACTERS", size)
    monkeypatch.setattr(scanner, "MAX_EVENT_CHARACTERS", 4_000)
    monkeypatch.setattr(text, "CHUNK_BYTES", 500)
    many = [kernel(number, 1, number) for number in range(1, 30)]
    last = host('{"device": "cpu"}(12): run', 1, 30, "python_function", notes=[{"a": 1}] * 400)
    events = json.dumps([*many, last]).replace(r"\"", '"')

    found, tally = read(form.format(events))

    assert list(found.activities.correlations) == list(range(1, 30))
    assert tally.rejected == {scanner.LAST_DAMAGED: 1}
    assert (found.rank, found.base_unix_ns) == ((3, 7) if "rank" in form else (None, 0))


@pytest.mark.parametrize("made", ["", "   ", "hello", "\x00\x01", '{"a": 1}', "{}", "7", "[]", "[[-1, 1, 37888, 7], [-1, 1, 512, 7]]", '[{"a": 1}]', '{"traceEvents": []}', '{"traceEvents": [{"ph":'])  # fmt: skip
def test_what_is_no_trace_is_refused(read, made):
    """And it is said how one is written."""
    with pytest.raises(RecordingError, match="not a trace of torch") as caught:
        read(made)

    assert "export_chrome_trace" in caught.value.hint


WHOLE = json.dumps(trace(HEALTHY), indent=1)


@given(
    st.lists(
        st.tuples(
            st.integers(0, len(WHOLE)),
            st.integers(0, 12),
            st.sampled_from(["", "}", "{", '"', "\\", "[", "]", ",", "NaN", "1e999", "-", "\x00", '{"ph": "X"}', "null"]),
        ),
        min_size=1, max_size=6,
    )
)  # fmt: skip
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_wrong_there_is_an_answer(tmp_path, harms):
    """A report that its schema allows, or a clear error; nothing else is raised."""
    made = WHOLE
    for at, cut, put in harms:
        made = made[:at] + put + made[at + cut :]

    with suppress(RecordingError):
        explain(write(tmp_path / "trace.json", made))


@pytest.mark.parametrize("value", [None, True, "5", [1], {"a": 1}, 1e400, -1, 1 << 70, "x" * 5_000])
@pytest.mark.parametrize("key", ["ts", "dur", "pid", "tid", "name", "cat", "args", "ph"])
def test_any_value_may_stand_in_any_place(tmp_path, key, value):
    """Of what an event needs, and of what it says of a device."""
    made = [dict(one, args=dict(one["args"])) for one in HEALTHY]
    for one in made:
        one[key] = value
    for name in ("device", "stream", "correlation", "bytes", "blocks per SM", "Collective name"):
        made.append(kernel(200, 5, 80))
        made[-1]["args"][name] = value

    explain(write(tmp_path / "trace.json", trace(made, distributedInfo=value, deviceProperties=[value, {"id": value}], baseTimeNanoseconds=value)))  # fmt: skip


def test_a_list_of_events_alone_is_a_trace(read):
    """Chrome's older form."""
    found, _ = read(json.dumps(HEALTHY))

    assert (len(found.activities), len(found.host)) == (2, 3)


def test_a_folder_holds_the_traces_of_ranks(tmp_path):
    """One event for each, in the order of their names."""
    for rank in range(3):
        made = trace(HEALTHY, distributedInfo={"rank": rank, "world_size": 3})
        packed = gzip.compress(json.dumps(made).encode())
        (tmp_path / f"rank{rank}.pt.trace.json.gz").write_bytes(packed)
    (tmp_path / "notes.txt").write_text("nothing")

    with open_capture("torch-trace", tmp_path, Config()) as capture:
        found = [one.trace.rank for one in capture.events() if isinstance(one, DeviceRead)]

    assert found == [0, 1, 2]
    assert capture.counts.taken["activities of devices"] == 6


def test_a_folder_without_traces_is_refused(tmp_path):
    """It says what is looked for."""
    with (
        pytest.raises(RecordingError, match="contains no trace"),
        open_capture("torch-trace", tmp_path, Config()),
    ):
        pass


def packed_trace(tmp_path, harm):
    path = tmp_path / "trace.json.gz"
    many = [kernel(number, 1, number) for number in range(1, 4_000)]
    path.write_bytes(harm(gzip.compress(json.dumps(trace(many)).encode())))
    return path


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        pytest.param(lambda packed: packed[:-400], "ends early", id="cut"),
        pytest.param(
            lambda packed: packed[:-4_000] + bytes(4_000), "damaged", id="overwritten"
        ),
    ],
)  # fmt: skip
def test_a_compressed_file_may_end_early(tmp_path, harm, problem):
    """What comes before is read."""
    with open_capture("torch-trace", packed_trace(tmp_path, harm), Config()) as capture:
        *_, read = capture.events()

    assert 0 < len(read.trace.activities) < 3_999
    assert any(problem in reason for reason in capture.counts.rejected)


def test_a_bomb_stays_small(tmp_path, monkeypatch):
    """Text without end is refused where it is too long, and never held."""
    monkeypatch.setattr(text, "MAX_BYTES", 64 << 20)
    path = tmp_path / "trace.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(b'{"traceEvents": [')
        for _ in range(80):
            stream.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        with (
            pytest.raises(RecordingError, match="more than 0 GiB"),
            open_capture("torch-trace", path, Config()) as capture,
        ):
            list(capture.events())
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()


def test_events_are_bounded(read, monkeypatch):
    """More of them than there is room for are refused, not dropped."""
    monkeypatch.setattr(rows, "MAX_ROWS", 100)

    with pytest.raises(RecordingError, match="more than 100 events") as caught:
        read(trace(kernel(number, 1) for number in range(1, 200)))

    assert "fewer steps" in caught.value.hint


def test_a_file_that_is_all_damage_is_given_up(read, monkeypatch):
    """Each piece of damage costs time; there is an end to it."""
    monkeypatch.setattr(scanner, "MAX_DAMAGED", 50)

    found, tally = read('{"traceEvents": [' + '{"ph": x},' * 1_000 + "]}")

    assert len(found.activities) == 0
    assert tally.rejected == {scanner.DAMAGED: 50, scanner.GIVEN_UP: 1}


@pytest.mark.parametrize("piece", [*range(64, 96), 700, 1_000, 4_000])
def test_an_event_may_lie_across_pieces(read, monkeypatch, piece):
    """The window slides by any length, and no event is lost or read twice."""
    monkeypatch.setattr(text, "CHUNK_BYTES", piece)
    monkeypatch.setattr(scanner, "MOST_EVENTS_CHARACTERS", 200)
    monkeypatch.setattr(scanner, "MAX_EVENT_CHARACTERS", 2_000)
    many = [kernel(number, 1, number) for number in range(1, 100)]
    # Longer than most events are.
    many[50]["args"]["note"] = "x" * 1_500

    found, tally = read(json.dumps(trace(many)))

    assert list(found.activities.correlations) == list(range(1, 100))
    assert not tally.rejected


def test_an_event_that_is_too_long_is_damage(read, monkeypatch):
    """It is never held; what stands behind it is read."""
    monkeypatch.setattr(text, "CHUNK_BYTES", 1_000)
    monkeypatch.setattr(scanner, "MOST_EVENTS_CHARACTERS", 500)
    monkeypatch.setattr(scanner, "MAX_EVENT_CHARACTERS", 2_000)
    many = [kernel(number, 1, number) for number in range(1, 100)]
    many[50]["args"]["note"] = "x" * 9_000

    found, tally = read(json.dumps(trace(many)))

    assert list(found.activities.correlations) == [*range(1, 51), *range(52, 100)]
    assert tally.rejected == {scanner.DAMAGED: 1}


def test_short_functions_of_python_are_not_kept(read):
    """They are most events of a trace with stacks; that there were some is known."""
    short = host("a.py(1): f", 0, 50, "python_function")
    long = host("a.py(9): g", 0, 500, "python_function")

    found, _ = read(trace([short, long]))

    assert [found.names[number] for number in found.host.names] == ["a.py(9): g"]
    assert found.has_stacks


def test_names_are_bounded(read):
    """A long one is cut, and what a terminal would obey is not in it."""
    found, _ = read(trace([kernel(1, 1, name="k" * 10_000), kernel(3, 1, name="\x1b[31mred")]))

    assert max(map(len, found.names)) == 512
    assert not any("\x1b" in name for name in found.names)
    assert not math.isnan(found.activities.occupancies[0])


def test_tiny_events_stay_small(tmp_path):
    """However many there are, and whatever they are packed into: what is not kept is not held."""
    path = tmp_path / "trace.json.gz"
    tiny = b'{"ph":"X","cat":"python_function","name":"f","pid":1,"tid":1,"ts":1,"dur":1},\n'
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(b'{"traceEvents":[\n')
        for _ in range(200):
            stream.write(tiny * 1_000)
        stream.write(json.dumps(kernel(1, 1)).encode() + b"]}")
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        with open_capture("torch-trace", path, Config()) as capture:
            *_, found = capture.events()
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()

    assert len(found.trace.activities) == 1
    assert found.trace.has_stacks


def test_threads_have_the_names_that_the_file_gives_them(read):
    """Also where the name comes after what the thread did; other facts about threads are no loss."""
    done = host("aten::add", 10, 5)
    about = {"ph": "M", "pid": done["pid"], "tid": done["tid"], "ts": 0}
    named = {**about, "name": "thread_name", "args": {"name": "thread 7 (trainer)"}}
    sorted_by = {**about, "name": "thread_sort_index", "args": {"sort_index": 3}}
    made, _ = read(trace([done, named, sorted_by]))

    assert [one.name for one in made.threads] == ["", "thread 7 (trainer)"]
    assert made.rejected == {}
