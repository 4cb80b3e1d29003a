"""The agent ends in time, whatever waits in the rings, and what was counted is exact all the same."""

from collections import Counter

import pytest

from otel_gpu import wire
from otel_gpu.capture import ending
from otel_gpu.capture.ending import END_UNREAD
from otel_gpu.capture.programs import Programs
from otel_gpu.capture.session import Session
from otel_gpu.config import load
from otel_gpu.decode.decoder import decode
from otel_gpu.decode.events import CudaCall, Status
from otel_gpu.decode.readings import Aggregates
from tests.kernel.test_tenants import CALLS, make_calls, program
from tests.stubs.build import StubLibraries

pytestmark = pytest.mark.kernel


def test_records_that_are_not_read_any_more_are_counted(
    stubs: StubLibraries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There was no time for any of them, and each call is in the last reading of the counts."""
    monkeypatch.setattr(ending, "_READS_S", 0.0)
    config = load(None, {}, {"spans.mode": "full"})
    with (
        program(CALLS, stubs.runtime) as calling,
        Programs(config, watch_all=False) as programs,
    ):
        session = Session(programs, config, pids=[calling.pid])
        batches = session.batches()
        next(batches)
        make_calls(calling, 1009)
        session.stop()
        records = [record for batch in batches for record in batch]

    rejected: Counter[str] = Counter()
    events = list(decode(records, rejected))
    made = {
        key: one.counted
        for event in events
        if isinstance(event, Aggregates)
        for key, one in event.series
        if (key.pid, key.metric) == (calling.pid, wire.METRIC_CALL_DURATION)
    }
    (*_, status) = (one.info for one in events if isinstance(one, Status))
    assert not any(isinstance(one, CudaCall) for one in events)
    assert sum(made.values()) == 1009
    assert status["files"][END_UNREAD] >= 1
    assert rejected == {}
