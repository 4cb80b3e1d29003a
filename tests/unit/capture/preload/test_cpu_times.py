"""The time of a thread on a CPU, divided by what the preload library knows of calls and gaps."""

from otel_gpu import wire
from otel_gpu.capture.preload.cpu_times import PreloadTimes
from otel_gpu.capture.preload.shared_memory import PreloadReading, PreloadThread
from otel_gpu.wire.probe_table import APIS

LAUNCH, WAIT, MALLOC, QUERY = (
    next(api.number for api in APIS if api.name == name)
    for name in ("cudaLaunchKernel", "cudaStreamSynchronize", "cudaMalloc", "cudaEventQuery")
)
ALL_REDUCE = next(api.number for api in APIS if api.name == "ncclAllReduce")
GAP, CALL, SYNCHRONIZE, OTHER = (
    *(wire.CONTEXT_GAP, wire.CONTEXT_CALL),
    *(wire.CONTEXT_SYNCHRONIZE, wire.CONTEXT_OTHER),
)

BOOKED = (0, 0)


def entry(context, api, time_ns, state=wire.STATE_ON_CPU, **details):
    key = {"program_ktime_ns": 7, "pid": 9, "state": state, "context": context, "api": api}
    key |= {"kernel_stack": -1, "system_call": -1, **details}
    value = wire.TIMES.build(time_ns=time_ns, ended_ns=time_ns, count=1)
    return wire.TIMES_KEY.build(**key), value


def reading(places, *threads):
    return PreloadReading(5, 0, 1, {}, places, list(threads), (0,) * wire.PRELOAD_LOSSES, 0)


def thread(**fields):
    known = dict.fromkeys(PreloadThread._fields, 0) | {"tid": 1}
    return PreloadThread(**{**known, **fields})


def told(entries):
    """On a CPU, by context and API."""
    found = {}
    for key, value in entries:
        named = wire.TIMES_KEY.named(key)
        if named["state"] == wire.STATE_ON_CPU:
            time_ns = wire.TIMES.named(value)["time_ns"]
            assert time_ns == wire.TIMES.named(value)["ended_ns"]
            found[named["context"], named["api"]] = time_ns
    return {place: time_ns for place, time_ns in found.items() if time_ns}


def test_time_on_a_cpu_is_that_of_the_clock_without_that_off_it():
    """Wherever the thread was when it left the CPU."""
    entries = [
        entry(OTHER, 0, 100),
        entry(GAP, LAUNCH, 1000),
        entry(SYNCHRONIZE, WAIT, 5000, wire.STATE_BLOCKED),
        entry(GAP, LAUNCH, 30, wire.STATE_RUN_QUEUE),
    ]
    found = PreloadTimes(None).divide(
        entries, reading({LAUNCH: (400, 530), WAIT: (5100, 0)}), BOOKED
    )

    assert told(found) == {
        (OTHER, 0): 100,
        (CALL, LAUNCH): 400,
        (SYNCHRONIZE, WAIT): 100,
        (GAP, LAUNCH): 500,
    }
    assert [one for one in found if one in entries[2:]] == entries[2:]


def test_what_is_not_over_yet_counts():
    """A call that is open, or the gap after the last one, until the account was booked."""
    entries = [entry(GAP, LAUNCH, 1000)]
    threads = (
        thread(open_api=WAIT, open_ktime_ns=10_000, last_return_ktime_ns=9_000, last_api=LAUNCH),
        thread(last_return_ktime_ns=10_200, last_api=LAUNCH),
    )
    found = PreloadTimes(None).divide(
        entries, reading({LAUNCH: (400, 0)}, *threads), (10_300, 10_300)
    )

    assert told(found) == {(CALL, LAUNCH): 400, (SYNCHRONIZE, WAIT): 300, (GAP, LAUNCH): 300}


def test_what_passed_while_the_account_was_booked_is_nowhere_yet():
    """The kernel side has 20 ns more of it than the thread was in its call then."""
    times, places = PreloadTimes(None), {WAIT: (0, 0)}
    entries = [entry(GAP, WAIT, 320), entry(SYNCHRONIZE, WAIT, 600, wire.STATE_BLOCKED)]
    inside = thread(open_api=WAIT, open_ktime_ns=10_000, last_api=LAUNCH)

    assert told(times.divide(entries, reading(places, inside), (10_900, 10_930))) == {
        (SYNCHRONIZE, WAIT): 300
    }
    assert told(times.divide(entries, reading({WAIT: (920, 0)}), BOOKED)) == {
        (SYNCHRONIZE, WAIT): 320
    }


def test_calls_that_only_probes_see_are_no_gaps():
    """To the preload library they are a part of one."""
    entries = [entry(GAP, LAUNCH, 700), entry(CALL, ALL_REDUCE, 300)]
    found = PreloadTimes(None).divide(entries, reading({LAUNCH: (200, 800)}), BOOKED)

    assert told(found) == {(CALL, LAUNCH): 200, (GAP, LAUNCH): 500, (CALL, ALL_REDUCE): 300}


def test_nothing_is_made_up_or_taken_back():
    """The sum is the kernel side's, however the clocks differ; and no part of it shrinks."""
    times = PreloadTimes(None)
    first = times.divide([entry(CALL, LAUNCH, 1000)], reading({LAUNCH: (900, 400)}), BOOKED)
    assert told(first) == {(CALL, LAUNCH): 900, (GAP, LAUNCH): 100}

    second = times.divide([entry(CALL, LAUNCH, 1000)], reading({LAUNCH: (900, 0)}), BOOKED)
    assert told(second) == {(CALL, LAUNCH): 900, (GAP, LAUNCH): 100}


def test_what_was_before_the_capture_is_left_out():
    """Of a program that counted before the agent came."""
    times = PreloadTimes(reading({MALLOC: (10_000, 20_000)}))
    found = times.divide([entry(GAP, MALLOC, 300)], reading({MALLOC: (10_100, 20_200)}), BOOKED)

    assert told(found) == {(CALL, MALLOC): 100, (GAP, MALLOC): 200}


def test_who_only_asks_has_no_gaps():
    """Though it was on a CPU for longer than its calls took."""
    entries = [entry(CALL, QUERY, 900)]

    found = PreloadTimes(None).divide(entries, reading({QUERY: (400, 0)}), BOOKED)

    assert told(found) == {(CALL, QUERY): 400}
