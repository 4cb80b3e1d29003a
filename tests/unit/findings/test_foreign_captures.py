"""Reports of captures of other tools, which count more calls than they keep."""

import math

import pytest

from otel_gpu.enrich.activities import CaptureActivity
from otel_gpu.enrich.ids import NO_SEED
from otel_gpu.findings.collector import Collector
from otel_gpu.findings.document import Window
from otel_gpu.findings.json_form import make_document
from tests.activities import SECOND, T0, calls, capture, image, snapshot
from tests.schemas import REPORT
from tests.unit.findings.samples import FakeExplainer

TRAINER = image(42, 1)
FOREIGN = CaptureActivity(
    T0, capture().info | {"unknown": ["distributions", "freed_bytes"]}, NO_SEED
)
US = 1_000


def partly(api, kept_ns, *, more, sum_ns, size_bytes=0):
    """A series of which most has only been counted."""
    series = calls(TRAINER, api, kept_ns or [US], size_bytes=size_bytes)
    buckets = series.aggregate.buckets if kept_ns else (0,) * len(series.aggregate.buckets)
    counted = series.aggregate._replace(sum=sum_ns, unplaced=more, buckets=buckets)
    return series._replace(aggregate=counted)


WHOLE = Window()


def report_of(*activities, window=WHOLE):
    collector = Collector(FakeExplainer(), window=window)
    for activity in (FOREIGN, *activities):
        collector.observe(activity)
    return collector.finish("x.db")


def test_all_calls_count_and_the_kept_ones_have_percentiles():
    """That it is so is said instead of the sentence about buckets."""
    report = report_of(
        snapshot(1, partly("cudaFree", [10 * US] * 3, more=97, sum_ns=SECOND)),
    )

    (row,) = report.apis
    assert (row.calls, row.sum_ns) == (100, SECOND)
    assert row.p50_ns == pytest.approx(10 * US, rel=0.091)
    assert (
        "97 calls were counted and not kept one by one: they are in counts and totals, and in no "
        "percentile."
    ) in report.notes
    assert not [note for note in report.notes if "errors, totals and bytes are exact" in note]


def test_an_api_of_which_no_call_was_kept_has_no_percentiles():
    """In the document they are null."""
    report = report_of(snapshot(1, partly("cudaFree", [], more=5, sum_ns=50 * US)))

    (row,) = report.apis
    assert (row.calls, math.isnan(row.p50_ns), math.isnan(row.p99_ns)) == (5, True, True)
    document = make_document(report)
    REPORT.validate(document)
    assert document["apis"][0]["p50_ns"] is None


def test_a_window_has_what_was_counted_in_it():
    """Kept or not."""
    report = report_of(
        snapshot(1, partly("cudaFree", [US], more=10, sum_ns=100 * US)),
        snapshot(2, partly("cudaFree", [US, US], more=40, sum_ns=500 * US)),
        window=Window(T0 + SECOND, T0 + 3 * SECOND),
    )

    (row,) = report.apis
    assert (row.calls, row.sum_ns) == (31, 400 * US)


def test_a_window_of_which_nothing_was_kept_has_an_estimate_of_the_longest():
    """It is no longer than the longest of all."""
    report = report_of(
        snapshot(1, partly("cudaFree", [], more=10, sum_ns=100 * US)),
        snapshot(2, partly("cudaFree", [], more=40, sum_ns=500 * US)),
        window=Window(T0 + SECOND, T0 + 3 * SECOND),
    )

    (row,) = report.apis
    assert (row.calls, row.max_ns) == (30, US)


def test_memory_is_not_told_where_frees_have_no_size():
    """All that was allocated would seem to be held."""
    report = report_of(
        snapshot(1, partly("cudaMalloc", [US], more=1, sum_ns=9, size_bytes=4096)),
    )

    assert report.balances == ()
    assert report.apis[0].size_bytes == 4096
