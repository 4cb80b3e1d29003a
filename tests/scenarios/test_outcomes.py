"""The verdict and the first advice of every scenario are what its truth says."""

from collections.abc import Callable

import pytest

from tests.scenarios.all_scenarios import SCENARIOS
from tests.scenarios.explained_runs import RUNS, ExplainedRun
from tests.scenarios.outcomes import MUCH_NOISE, OUTCOMES, faults_of_outcome, made_of, noise_of

pytestmark = [pytest.mark.kernel, pytest.mark.alone]

# Of these, the loop starts or ends with time that is of no feeding thread, or not of the loop.
_NOT_MEASURED = {"idle-server"}


@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_verdict_and_the_first_advice_are_those_of_the_truth(
    run_scenario: Callable[[str, int], ExplainedRun], name: str, run: int
) -> None:
    """With whose fault it is; and how long it waited for a CPU is what the loop itself measured."""
    explained = run_scenario(name, run)
    truth, noise = explained.truth, noise_of(explained.truth)

    faults = faults_of_outcome(explained.document, truth.pid, OUTCOMES[name], noise, made_of(truth))
    assert not list(faults)
    (process,) = (one for one in explained.document["processes"] if one["pid"] == truth.pid)
    if name not in _NOT_MEASURED and truth.took_ns:
        waited = process["verdict_shares"]["starved"]
        assert waited == pytest.approx(truth.waited_ns / truth.took_ns, abs=MUCH_NOISE)
