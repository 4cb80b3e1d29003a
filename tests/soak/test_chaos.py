"""Sequences of faults, for minutes."""

import logging
import time

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.chaos.test_chaos import Chaos

ENOUGH, AT_A_TIME, STEPS = 10_000, 100, 50


def test_no_sequence_of_faults_ends_the_capture(deadline_s: float) -> None:
    """
    Ten thousand sequences, or as many as there is time for, each with all that the short test checks.
    """
    played = 0
    while played < ENOUGH and time.monotonic() < deadline_s:
        run_state_machine_as_test(
            Chaos,
            settings=settings(
                max_examples=AT_A_TIME,
                stateful_step_count=STEPS,
                database=None,
                deadline=None,
                derandomize=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
        played += AT_A_TIME

    logging.getLogger(__name__).info("%d sequences of %d steps", played, STEPS)
    assert played
