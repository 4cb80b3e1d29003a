"""The load of the host in a window."""

import pytest

from otel_gpu.enrich.activities import PressureActivity
from otel_gpu.report.render.text.tables import load_lines
from otel_gpu.state.pressure import Load, PressureState, Throttled
from otel_gpu.state.window import Window
from tests.activities import SECOND, T0


def reading(at_s, **info):
    return PressureActivity(T0 + at_s * SECOND, info)


def full(at_s, load1, waited_us, throttled_ns, swapped):
    return reading(
        at_s,
        load1=load1,
        cpus=4,
        psi={"cpu": {"some_total_us": waited_us}, "memory": {"some_total_us": 7}},
        swap_in_pages=swapped,
        swap_out_pages=5,
        cgroups={
            "/a": {"throttled_ns": throttled_ns, "nr_throttled": 3, "nr_periods": 20},
            "/idle": {"throttled_ns": 9, "nr_throttled": 1, "nr_periods": 1},
        },
    )


def load_of(*readings, window=Window()):  # noqa: B008 -- immutable
    pressure = PressureState(window)
    for one in readings:
        pressure.observe(one)
    return pressure.load()


def test_counters_are_what_was_added_in_the_window():
    """Totals since boot say nothing of a window; the difference does."""
    load = load_of(
        full(0, 99.0, 0, 0, 0),
        full(10, 2.5, 1_000_000, 100, 1_000),
        full(20, 8.0, 4_000_000, 400, 1_500),
        window=Window(start_unix_ns=T0 + 5 * SECOND),
    )

    assert load == Load(
        8.0, 4, {"cpu": pytest.approx(0.3), "memory": 0.0}, 500, 0, (Throttled("/a", 300, 0, 0),)
    )


def test_lines_say_it_in_words():
    """Load per CPU, PSI, swap, quotas: only what there is to say."""
    load = Load(9.5, 4, {"cpu": 0.31}, 3, 1, (Throttled("/x\x1b", 3_000_000, 2, 30),))

    assert load_lines(load) == [
        "load up to 9.5 on 4 CPUs",
        "some thread waited for: cpu 31 % of the time (PSI)",
        "swapped in 3 pages, out 1 page",
        "cgroup /x\\x1b: held back by its CPU quota for 3 ms, in 2 of 30 periods",
    ]


def test_no_reading_is_no_load():
    """A capture without readings says nothing of the host."""
    assert load_of() is None


@pytest.mark.parametrize("info", [{}, {"psi": {"cpu": {}}, "cgroups": {"/a": {}}}])
def test_fields_that_are_missing_count_as_zero(info):
    """A recording of another version can lack some."""
    load = load_of(reading(0), reading(1, **info), reading(2, **info))

    assert load._replace(stalled={}) == Load(0.0, 0, {}, 0, 0, ())
    assert set(load.stalled.values()) <= {0.0}
