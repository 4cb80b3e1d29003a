"""``otel-gpu run``: the calls that its log keeps."""

import logging

from otel_gpu.cli.commands import run
from tests.activities import image, open_call


def test_hung_calls_are_logged_once_and_those_that_returned_are_forgotten(monkeypatch, caplog):
    """A call that still hangs is observed repeatedly, so it is not evicted."""
    monkeypatch.setattr(run, "_MAX_LOGGED", 2)
    log = run._HangLog()
    trainer = image(77)

    with caplog.at_level(logging.WARNING):
        for start_ns in (1_000, 2_000, 3_000, 4_000):
            log.observe(open_call(trainer, "cudaMalloc", start_ns, 9_000))
            log.observe(open_call(trainer, "cudaMalloc", 1_000, 9_000))

    assert len(caplog.records) == 4
    assert len(log._logged) == 2
