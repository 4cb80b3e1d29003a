"""The tables of judgement."""

import pytest

from otel_gpu.explain import rules
from otel_gpu.explain.advice import advice_of


def test_every_kind_that_a_state_can_mean_has_a_rule():
    """A kind without advice would be of no use to anybody."""
    reasons = (
        *("lock", "gil", "io", "ipc", "sleep", "page_fault", "reclaim", "mmap_lock"),
        *("child_wait", "stopped", "driver", "unknown", "", "novel"),
    )

    kinds = {rules.blocked_kind(reason, place) for reason in reasons for place in rules.Place}
    kinds |= {rules.on_cpu_kind(place) for place in rules.Place}

    assert kinds <= set(rules.KINDS)


def test_the_kinds_are_those_that_are_documented():
    """They are in exported telemetry, so a change is a change for its readers."""
    assert set(rules.KINDS) == {
        *("preemption", "run_queue", "cpu_quota", "lock", "gil", "io", "ipc", "sleep", "network"),
        *("page_fault", "reclaim", "mmap_lock", "fork", "stopped", "frozen", "capture"),
        "gpu_wait",
        *("gpu_backpressure", "first_call", "allocator_churn", "unexplained", "host_work"),
        *("network", "gpu_clocks", "gpu_fault"),
        *("empty_cache", "allocation_retry", "allocator_bypass"),
        *("exhausted", "fragmentation", "other_process", "leak"),
        *("fitting_hole", "private_pool", "other_stream", "kept_cache"),
        *("collective_wait", "collective_mismatch", "collective_stuck"),
    }


@pytest.mark.parametrize(
    "kind",
    [
        *("gpu_wait", "gpu_backpressure", "first_call", "host_work", "sleep", "unexplained"),
        "capture",
    ],
)
def test_these_are_nobodys_fault_on_the_host(kind):
    """However long they last, no operator has to look for somebody to blame."""
    assert rules.RULE_BY_KIND[kind].fault == rules.FaultSide.NONE


def test_back_pressure_has_the_opposite_advice_of_a_busy_cpu():
    """More CPU would not make the device faster."""
    assert "more CPU does not help" in rules.RULE_BY_KIND["gpu_backpressure"].advice
    assert "CPUs of its own" in rules.RULE_BY_KIND["preemption"].advice


def test_a_wait_for_a_cpu_that_nobody_had_has_its_own_advice():
    """There is no other load to move away, and no quota to raise."""
    advice = advice_of("run_queue", is_cpu_idle=True)

    assert all(word in advice for word in ("hypervisor", "interrupt", "idle state"))
    assert "cpu.max" not in advice
    assert advice_of("run_queue") == rules.RULE_BY_KIND["run_queue"].advice
    assert advice_of("cpu_quota", is_cpu_idle=True) == rules.RULE_BY_KIND["cpu_quota"].advice
