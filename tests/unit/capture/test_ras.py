"""NCCL's own service, spoken to over a socket: what it says, and what anybody may say in its place."""

import json
import resource
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu import wire
from otel_gpu.capture import ras
from otel_gpu.capture.foreign_json import ForeignJsonError
from otel_gpu.capture.ras import RasError, RasService, ask
from otel_gpu.capture.ras_status import MAX_COMMUNICATORS, MAX_RANKS, read_json, read_text
from otel_gpu.decode.bodies import parse_body
from tests.ras_servers import absent, communicator, rank, serving, speaks, status

# What NCCL's documentation shows of RAS's answers as text.
RUNNING = b"""\
NCCL version 2.24.3 compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         8         4         1         4        32   RUNNING      OK

Errors
======

Warnings
========

"""
MISSING = b"""\
Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        32   RUNNING  INCOMPLETE

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

"""
DEAD = MISSING.replace(
    b"INCOMPLETE\n  Missing communicator data from 1 job process\n",
    b"DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n",
    1,
).replace(
    b"  The missing rank: 21\n",
    b"  Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213\n",
)
MISMATCH = b"""\
Communicators... (0.01s)
=============

    0         1         4         8        32        32   RUNNING  MISMATCH

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  30 ranks have launched up to operation 6650
  1 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 3 has launched up to operation 6651 -- GPU 3 managed by process 483075 on node 172.16.64.210

"""
FAILED = b"""\
    0         1         1         8         8         8   RUNNING  ERROR

#0-0 (27a079b828ff1a75) ERROR
  Asynchronous errors on 2 ranks
  2 ranks reported System error

"""


def checked(reading):
    """What a recording would have of a reading."""
    body = {"address": "localhost:28028", "failed": {}, **reading}
    return parse_body(wire.RECORD_RAS, json.dumps(body).encode())


def test_a_job_is_asked_in_json():
    """The conversation that ncclras has, and what it brings."""
    made = communicator([rank(0), rank(1, calls=98)], [absent(2, unresponsive=True)])
    with serving(speaks(status(made, timeouts=1))) as service:
        reading = checked(ask(service.address))

    assert service.commands == ["CLIENT PROTOCOL 2", "SET FORMAT json", "STATUS"]
    assert (reading["is_there"], reading["format"]) == (True, "json")
    assert (reading["nccl_version"], reading["timeouts"], reading["collection_s"]) == (
        "2.29.1",
        1,
        0.25,
    )
    assert reading["communicators_count"] == 1
    (one,) = reading["communicators"]
    assert one == {
        "id": "ae94423cfbb2ef4a",
        "size": 3,
        "answering": 2,
        "silent": {"unresponsive": 1},
        "absent": [{"rank": 2, "host": "10.0.0.2", "pid": 5002, "state": "unresponsive"}],
        "errors": {},
        "calls": {"Broadcast": [0, 0], "AllReduce": [98, 100]},
        "behind": [
            {"rank": 1, "host": "10.0.0.1", "pid": 4001, "operation": "AllReduce", "calls": 98}
        ],
    }


def test_a_service_without_json_is_asked_for_text():
    """NCCL 2.24 to 2.28: it answers that it does not know the command."""
    with serving(speaks(text_status=MISSING)) as service:
        reading = checked(ask(service.address))

    assert service.commands[-1] == "VERBOSE STATUS"
    assert reading["format"] == "text"
    assert reading["communicators"][0]["silent"] == {"unresponsive": 1}


@pytest.mark.parametrize(
    ("ranks", "state"),
    [
        (absent(1, unresponsive=True), "unresponsive"),
        (absent(1, unresponsive=True, considered_dead=True), "dead"),
        (absent(1), "missing"),
        ({"rank": 1}, "missing"),
    ],
)
def test_why_a_rank_says_nothing(ranks, state):
    """The worst of it."""
    (one,) = checked(read_json(status(communicator([rank(0)], [ranks]))))["communicators"]

    assert one["silent"] == {state: 1}
    assert one["absent"][0]["state"] == state


def test_errors_are_counted_by_name():
    """Of the initialization and later ones; one that goes on is none."""
    ranks = [rank(0, async_error=2), rank(1, async_error=2), rank(2, async_error=7), rank(3)]
    ranks[3]["status"] |= {"init_state": 99, "abort_flag": True}
    (one,) = checked(read_json(status(communicator(ranks))))["communicators"]

    assert one["errors"] == {"ncclSystemError": 2, "_OTHER": 1, "aborted": 1}


def test_of_many_communicators_those_with_trouble_come_first():
    """And of many ranks some are told by name, while all are counted."""
    healthy = [communicator([rank(0)], name=f"{number:#x}") for number in range(1, 500)]
    ill = communicator(
        [rank(0)], [absent(n, unresponsive=True) for n in range(1, 200)], name="0xbad"
    )
    reading = checked(read_json(status(*healthy, ill)))

    assert reading["communicators_count"] == 500
    assert len(reading["communicators"]) == MAX_COMMUNICATORS
    first = reading["communicators"][0]
    assert first["id"] == "0000000000000bad"
    assert (first["silent"], len(first["absent"])) == ({"unresponsive": 199}, MAX_RANKS)


def test_text_of_a_job_that_runs():
    """Its communicators are counted, and none is named."""
    reading = checked(read_text(RUNNING))

    assert (reading["nccl_version"], reading["communicators_count"]) == ("2.24.3", 8)
    assert reading["communicators"] == []


def test_text_of_ranks_that_do_not_answer():
    """By number alone, or with their process."""
    reading = checked(read_text(MISSING))
    (one,) = reading["communicators"]
    assert (one["id"], one["size"], one["answering"]) == ("cf264af53edbe986", 32, 31)
    assert one["absent"] == [{"rank": 21, "host": "", "pid": 0, "state": "unresponsive"}]
    assert (reading["timeouts"], reading["collection_s"]) == (2, 2.05)
    assert reading["unresponsive_processes"] == 1

    reading = checked(read_text(DEAD))
    (one,) = reading["communicators"]
    assert reading["dead_processes"] == 1
    assert one["absent"][0] | {"state": ""} == {
        "rank": 21,
        "host": "172.16.64.213",
        "pid": 3487984,
        "state": "",
    }


def test_text_of_ranks_that_are_behind():
    """Those that are listed and have not the most."""
    (one,) = checked(read_text(MISMATCH))["communicators"]

    assert one["calls"] == {"AllReduce": [6649, 6651]}
    assert one["behind"] == [
        {"rank": 0, "host": "172.16.64.210", "pid": 483072, "operation": "AllReduce", "calls": 6649}
    ]


def test_text_of_ranks_with_errors():
    """How many they are."""
    (one,) = checked(read_text(FAILED))["communicators"]

    assert one["errors"] == {"_OTHER": 2}


def _says(*parts):
    """A service that says these parts whatever it is asked, and closes."""

    def answer(connection, commands):
        next(commands, None)
        for part in parts:
            connection.sendall(part)

    return answer


GREETING = b"SERVER PROTOCOL 2\nOK\n"


@pytest.mark.parametrize(
    ("reason", "answer"),
    [
        ("closed", _says()),
        ("closed", _says(b"SERVER PROTOCOL 2\n")),
        ("protocol", _says(b"HTTP/1.1 400 Bad Request\n")),
        ("protocol", _says(b"x" * 100_000)),
        ("protocol", _says(b"SERVER PROTOCOL 2\n", b"maybe\n")),
        ("malformed", _says(GREETING)),
        ("malformed", _says(GREETING, b"{")),
        ("malformed", _says(GREETING, b"[" * 500_000)),
        ("malformed", _says(GREETING, b'{"communicators": 5}')),
        ("malformed", _says(GREETING, b'{"communicators": [' + b"[]," * 2_000_000 + b"[]]}")),
        ("malformed", _says(b"SERVER PROTOCOL 2\nERROR: no\n", b"nonsense\n")),
    ],
)
def test_who_says_something_else_is_a_failure(reason, answer):
    """By its reason; nothing else is raised, also where it hangs up while it is spoken to."""
    with serving(answer) as service, pytest.raises((RasError, ConnectionError)) as caught:
        ask(service.address)
    assert isinstance(caught.value, ConnectionError) or str(caught.value) == reason


def test_an_answer_of_a_gigabyte_is_not_taken():
    """No more than there is room for."""
    sent = []

    def answer(connection, commands):
        next(commands, None)
        connection.sendall(GREETING)
        for _ in range(1 << 10):
            connection.sendall(bytes(1 << 20))
            sent.append(1 << 20)

    with serving(answer) as service, pytest.raises(RasError, match="too_large"):
        ask(service.address)
    assert sum(sent) < 2 * ras.MAX_BYTES


def test_who_dribbles_is_left_at_the_deadline():
    """Each byte comes soon after the one before, and the answer never ends."""

    def answer(connection, commands):
        next(commands, None)
        connection.sendall(GREETING)
        while True:
            connection.sendall(b" ")
            time.sleep(0.01)

    with serving(answer) as service:
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            ask(service.address, 0.3)
        assert time.monotonic() - begun >= 0.3


def test_who_says_nothing_is_left_at_the_deadline():
    """It takes the connection and that is all."""
    with serving(lambda _, commands: list(commands)) as service, pytest.raises(TimeoutError):
        ask(service.address, 0.2)


# What may take much room; made when it is thrown.
BOMBS = {
    "many lists": ("json", lambda: b'{"communicators": [' + b"[]," * 5_000_000 + b"[]]}"),
    "many numbers": ("json", lambda: b'{"communicators": [' + b"1," * 8_000_000 + b"1]}"),
    "wide text": (
        "json",
        lambda: b'{"communicators": ["' + "\U0001f600".encode() * 4_000_000 + b'"]}',
    ),
    "many lines": ("text", lambda: b"\n" * (16 << 20)),
    "one line": ("text", lambda: b"x" * (16 << 20)),
    "many ranks": (
        "text",
        lambda: MISSING.replace(b"rank: 21", b"ranks: " + b"1, " * 5_000_000),
    ),
    "many communicators": (
        "text",
        lambda: b"".join(
            b"#0-0 (%x) INCOMPLETE\n  Missing communicator data from 1 rank\n" % n
            for n in range(60_000)
        ),
    ),
    "many rows": ("text", lambda: b"  1  8  4  1  4  32  RUNNING  OK\n" * 120_000),
}


@pytest.mark.parametrize("name", BOMBS)
def test_an_answer_takes_little_room_and_time(name, tmp_path):
    """In a process of its own, which may have 300 MiB of address space and 30 s of CPU."""
    form, make = BOMBS[name]
    path = tmp_path / "answer"
    path.write_bytes(make())
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from otel_gpu.capture import ras_status\n"
        "from otel_gpu.capture.foreign_json import ForeignJsonError\n"
        f"try: ras_status.read_{form}(Path(sys.argv[1]).read_bytes())\n"
        "except ForeignJsonError: pass\n"
    )

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))
        resource.setrlimit(resource.RLIMIT_CPU, (30, 30))

    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")


def news(service):
    """The next reading of a service."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if (reading := service.take()) is not None:
            return checked(reading)
        time.sleep(0.005)
    raise AssertionError("nothing came")


def test_a_job_that_ends_is_news_once_and_none_is_no_failure():
    """First nobody listens, then a job runs, then it is gone."""
    with serving(speaks(status(communicator([rank(0)])))) as server:
        reader = RasService(server.address, 0.01)
        reader.start()
        first = news(reader)
        assert first["is_there"]
        assert first["address"] == server.address
    readings = [news(reader)]
    while readings[-1].get("is_there", True):
        readings.append(news(reader))
    assert readings[-1] == {
        "is_there": False,
        "address": server.address,
        "failed": readings[-1]["failed"],
    }
    assert "ConnectionRefusedError" not in readings[-1]["failed"]
    reader.close()


def test_failures_are_counted_and_the_next_answer_is_taken():
    """A service that lies at first."""
    good = speaks(status(communicator([rank(0)])))
    answers = iter([_says(b"go away\n"), _says(b"go away\n")])

    def answer(connection, commands):
        next(answers, good)(connection, commands)

    with serving(answer) as server:
        reader = RasService(server.address, 0.01)
        reader.start()
        reading = news(reader)
        while not reading.get("is_there"):
            reading = news(reader)
        reader.close()
    assert sum(reading["failed"].values()) == 2


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 64), 1 << 64)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["0x12", "0x" + "f" * 16, "\ud800", "x" * 2_000]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*communicator([]), *rank(0), "unresponsive", "AllReduce"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(
    changes=st.dictionaries(st.sampled_from(sorted(communicator([]))), JSON, max_size=3),
    of_rank=st.dictionaries(st.sampled_from(sorted(rank(0))), JSON, max_size=3),
    body=st.dictionaries(
        st.sampled_from(["nccl_version", "ras", "communicators"]), JSON, max_size=1
    ),
)
@settings(max_examples=400, deadline=None)
def test_whatever_it_says_is_a_body_or_refused(changes, of_rank, body):
    """Any value in the place of any other: what is read passes the check of records."""
    made = json.loads(status(communicator([rank(0), rank(1) | of_rank], [absent(2)]) | changes))
    try:
        reading = read_json(json.dumps(made | body).encode())
    except ForeignJsonError:
        return
    checked(reading)


@given(
    data=st.binary(max_size=60),
    at=st.integers(0, 2_000),
    text=st.sampled_from([RUNNING, MISSING, DEAD, MISMATCH, FAILED]),
)
@settings(max_examples=400, deadline=None)
def test_whatever_the_text_is_it_is_a_body_or_refused(data, at, text):
    """Bytes in the middle of an answer, and one that is cut."""
    at %= len(text)
    for tried in (text[:at] + data + text[at:], text[:at]):
        try:
            reading = read_text(tried)
        except ForeignJsonError:
            continue
        checked(reading)
