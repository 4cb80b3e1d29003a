"""ExplainedRun against truth: each scenario does one known thing, and that is what is found."""

from collections.abc import Callable

import pytest

from tests.scenarios.all_scenarios import SCENARIOS, STEADY
from tests.scenarios.explained_runs import RUNS, ExplainedRun, faults

# What other tests do to the machine must not be a cause as large as the injected one.
pytestmark = [pytest.mark.kernel, pytest.mark.alone]

# Nothing on the host is at fault: nobody is to be woken up.
HARMLESS = {"gpu-wait", "gpu-backpressure", "first-call"}
# One effect of several may be disturbed by what else goes on on this machine.
DISTURBED = 1


SUDDEN = [
    name
    for name, scenario in SCENARIOS.items()
    if name not in STEADY and not scenario.has_allocator
]


FAULTY = sorted({*SUDDEN} - {"clean"})
# A wait in a call, one between calls, and a call that has no CPU; all of them take their time.
# A preloaded program stands still in its first call, until the agent has its memory: its own clock
# sees that, and nobody else.
PRELOADED = sorted({*FAULTY} - {"first-call"}) if RUNS > 1 else ["gil", "gpu-wait", "preemption"]


@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.parametrize(
    ("way", "name"),
    [*(("probes", name) for name in FAULTY), *(("preload", name) for name in PRELOADED)],
)
def test_the_injected_cause_is_found(
    run_scenario: Callable[[str, int, str], ExplainedRun], name: str, way: str, run: int
) -> None:
    """
    The right cause comes first, with its size, its culprit and what was behind that.

    Whoever counts the calls.
    """
    explained = run_scenario(name, run, way)
    wrong = {
        number: found
        for number, effect in enumerate(explained.truth.effects)
        if (found := list(faults(explained, effect)))
    }

    assert explained.truth.effects
    allowed = DISTURBED if len(explained.truth.effects) > DISTURBED else 0
    assert len(wrong) <= allowed, wrong
    kind = explained.truth.effects[0].causes[0].kind
    incidents = [i for i in explained.incidents if i["causes"] and i["causes"][0]["kind"] == kind]
    assert incidents
    if name in HARMLESS:
        assert {incident["severity"] for incident in incidents} == {"low"}
        assert "high" not in {incident["severity"] for incident in explained.incidents}
    else:
        # The loop's own work between its calls may be more, and is nobody's fault.
        faulted = [i for i in explained.incidents if i["severity"] != "low"]
        assert faulted[0] == incidents[0]
    assert incidents[0]["advice"]


def test_a_clean_run_blames_nobody(run_scenario: Callable[[str], ExplainedRun]) -> None:
    """What else goes on on this machine is no reason to wake anybody."""
    explained = run_scenario("clean")

    assert explained.document["apis"]
    assert "high" not in {incident["severity"] for incident in explained.incidents}
    assert "high" not in {chain["severity"] for chain in explained.chains}


def test_nothing_is_lost(run_scenario: Callable[[str], ExplainedRun]) -> None:
    """The numbers above are of everything that happened."""
    losses = run_scenario("lock").document["losses"]

    assert {reason: count for reason, count in losses.items() if count} == {}
