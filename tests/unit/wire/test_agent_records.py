"""The records that the agent makes."""

import json

from otel_gpu import wire
from otel_gpu.wire.agent_records import (
    MAX_HOLDERS_PER_RECORD,
    MAX_JSON_BYTES,
    MAX_SERIES_PER_RECORD,
    aggregates_records,
    clock_record,
    counters_record,
    json_record,
    memory_records,
    open_call_record,
    times_record,
    unseen_exit_record,
)

KEY_BYTES = 32
VALUE_BYTES = 1568


def body_of(record):
    return json.loads(record[32:])


def test_a_clock_record_is_laid_out_as_the_wire_says():
    """A clock record is kind, flags, size, ktime, image, pid, tid, Unix time."""
    assert clock_record(1, 2).hex(" ", 4) == (
        "01010000 28000000 01000000 00000000 00000000 00000000 00000000 00000000 02000000 00000000"
    )


def test_a_json_record_names_its_process_and_its_size():
    """The header carries the process image, and a size that covers the body."""
    record = json_record(wire.RECORD_PROCESS, 9, {"comm": "a"}, pid=5, tid=6, program_ktime_ns=7)

    assert wire.RECORD_HEADER.unpack_from(record) == (258, 0, 44, 9, 7, 5, 6)
    assert record[32:] == b'{"comm":"a"}'


def test_an_end_that_was_not_seen_is_an_exit_without_a_code():
    """It says that it was not seen, so that nobody takes its zeros for a success."""
    record = unseen_exit_record(9, pid=5, program_ktime_ns=7)

    assert len(record) == wire.EXIT_RECORD.size
    assert wire.RECORD_HEADER.unpack_from(record) == (
        *(wire.RECORD_EXIT, wire.EXIT_NOT_SEEN, len(record), 9, 7),
        *(5, 5),
    )


def test_the_order_of_a_mapping_does_not_change_the_bytes():
    """The same facts give the same record, whatever order they were found in."""
    one = json_record(wire.RECORD_STATUS, 1, {"b": {"y": 1, "x": 2}, "a": 3})
    other = json_record(wire.RECORD_STATUS, 1, {"a": 3, "b": {"x": 2, "y": 1}})

    assert one == other
    assert one[32:] == b'{"a":3,"b":{"x":2,"y":1}}'


def test_a_path_that_is_not_utf8_still_makes_a_record():
    """Stray bytes in a path, as surrogates in Python, become question marks."""
    path = b"/opt/\xff\xfe/app".decode("utf-8", "surrogateescape")

    assert body_of(json_record(wire.RECORD_PROCESS, 1, {"exe": path})) == {"exe": "/opt/??/app"}


def test_a_body_above_the_bound_is_shortened_until_it_fits():
    """Strings and lists are cut to one limit, the largest that fits, and it is said."""
    body = {"command_args": ["x" * 5000] * 5000, "comm": "python"}

    shortened = body_of(json_record(wire.RECORD_PROCESS, 1, body))

    assert shortened == {"command_args": ["x" * 256] * 256, "comm": "python", "truncated": True}


def test_a_body_at_the_bound_is_left_alone():
    """Nothing is cut from a body of exactly the largest size."""
    text = "x" * (MAX_JSON_BYTES - len('{"a":""}'))

    assert body_of(json_record(wire.RECORD_STATUS, 1, {"a": text})) == {"a": text}


def test_a_body_that_cannot_be_shortened_enough_is_given_up():
    """Where no cut helps, as with long numbers, only the mark that it was cut is left."""
    numbers = 10**4000
    for _ in range(5):
        numbers = [numbers] * 4

    record = json_record(wire.RECORD_STATUS, 1, {"numbers": numbers})

    assert body_of(record) == {"truncated": True}


def test_keys_and_values_of_a_map_follow_each_other():
    """The record holds the entries as the map has them, and says how many."""
    one = (b"\x01" * KEY_BYTES, b"\x03" * VALUE_BYTES)
    other = (b"\x02" * KEY_BYTES, b"\x04" * VALUE_BYTES)

    (record,) = aggregates_records(5, [one, other])

    assert wire.AGGREGATES_RECORD.unpack_from(record) == (259, 0, 3240, 5, 0, 0, 0, 2)
    assert record[40:] == b"".join((*one, *other))


def test_a_series_that_has_counted_nothing_is_left_out():
    """A zeroed value is a series that was made and not yet added to."""
    counted = (b"\x02" * KEY_BYTES, b"\x04" * VALUE_BYTES)
    empty = (b"\x01" * KEY_BYTES, bytes(VALUE_BYTES))

    (record,) = aggregates_records(5, [empty, counted])

    assert wire.AGGREGATES_RECORD.unpack_from(record)[7] == 1
    assert record[40:] == b"".join(counted)
    assert list(aggregates_records(5, [empty])) == []


def test_more_series_than_a_record_takes_are_split():
    """What is made of a record is in memory at once, so none is too large."""
    series = [(b"\x01" * KEY_BYTES, b"\x02" * VALUE_BYTES)] * (MAX_SERIES_PER_RECORD + 1)

    records = list(aggregates_records(5, series))

    assert [wire.AGGREGATES_RECORD.unpack_from(record)[7] for record in records] == [256, 1]


def test_counters_are_in_the_order_of_their_enumeration():
    """All of them follow the header."""
    count = wire.COUNTER_COUNT

    record = counters_record(5, range(count))

    assert wire.COUNTERS_RECORD.unpack(record) == (
        *(260, 0, 32 + 8 * count, 5, 0, 0, 0), *range(count),
    )  # fmt: skip


def test_holders_are_sent_in_pieces():
    """Each record says how many entries it has: the devices of a host, or who holds their memory."""
    entries = [(b"\x01" * 24, b"\x02" * 40)] * (MAX_HOLDERS_PER_RECORD + 1)

    records = list(memory_records(wire.RECORD_HOLDERS, 5, entries))

    assert [wire.MEMORY_RECORD.unpack_from(record)[7] for record in records] == [4096, 1]
    assert wire.MEMORY_RECORD.unpack_from(records[1]) == (271, 0, 104, 5, 0, 0, 0, 1)


def test_the_time_account_follows_its_count():
    """Keys and values stand next to each other after the fixed part, whose size covers them."""
    key, value = b"\x01" * 24, b"\x02" * 16

    record = times_record(5, [(key, value)] * 2)

    assert wire.TIMES_RECORD.unpack_from(record) == (265, 0, 120, 5, 0, 0, 0, 2)
    assert record[40:] == (key + value) * 2


def test_the_name_in_an_open_call_ends_with_a_nul():
    """A name is cut to 15 bytes, as the kernel does, so that it always ends."""
    record = open_call_record(
        50,
        program_ktime_ns=7,
        pid=10,
        tid=11,
        start_ktime_ns=20,
        root_start_ktime_ns=15,
        blocked_ns=3,
        run_queue_ns=4,
        device=-1,
        api=6,
        depth=1,
        comm=b"a-name-that-is-longer",
        user_stack=99,
    )

    assert wire.OPEN_CALL_RECORD.unpack(record) == (
        *(261, 0, 96, 50, 7, 10, 11),
        *(20, 15, 3, 4, 99, -1, 6, 1),
        b"a-name-that-is-\0",
    )
