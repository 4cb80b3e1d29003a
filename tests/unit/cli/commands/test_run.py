"""``otel-gpu run``: what it keeps of what it says."""

import logging

from otel_gpu.cli.commands import run
from tests.activities import image, open_call


def test_hung_calls_are_logged_once_and_those_that_returned_are_forgotten(monkeypatch, caplog):
    """One that still hangs is seen all the time, and is not what gives way."""
    monkeypatch.setattr(run, "_MAX_SAID", 2)
    log = run._HangLog()
    trainer = image(77)

    with caplog.at_level(logging.WARNING):
        for start_ns in (1_000, 2_000, 3_000, 4_000):
            log.observe(open_call(trainer, "cudaMalloc", start_ns, 9_000))
            log.observe(open_call(trainer, "cudaMalloc", 1_000, 9_000))

    assert len(caplog.records) == 4
    assert len(log._said) == 2
