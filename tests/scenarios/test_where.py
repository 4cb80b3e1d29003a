"""Lost time is on the line where the loop was, and what is unexplained nobody measured."""

from collections.abc import Callable

import pytest

from tests.scenarios.all_scenarios import LINES, SCENARIOS
from tests.scenarios.explained_runs import RUNS, ExplainedRun
from tests.scenarios.lost_time import MOST_UNEXPLAINED, faults_of_lines, unexplained

pytestmark = [pytest.mark.kernel, pytest.mark.alone]


@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.parametrize("name", LINES)
def test_time_is_lost_on_the_lines_where_the_loop_was(
    run_scenario: Callable[[str, int], ExplainedRun], name: str, run: int
) -> None:
    """A preemption takes no stack: the open call, or samples, say where the thread was."""
    explained = run_scenario(name, run)
    (process,) = (
        one for one in explained.document["processes"] if one["pid"] == explained.truth.pid
    )

    assert not list(faults_of_lines(process["time_tree"], explained.truth.lines))


@pytest.mark.parametrize("name", SCENARIOS)
def test_nearly_all_of_what_is_lost_is_explained(
    run_scenario: Callable[[str], ExplainedRun], name: str
) -> None:
    """By what was seen one by one, and by what the time account has of the rest."""
    shares = unexplained(run_scenario(name).document)

    assert {of: share for of, share in shares if share > MOST_UNEXPLAINED} == {}
