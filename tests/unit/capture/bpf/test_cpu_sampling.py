"""When the sampling clocks run, and how many ticks are sampled."""

import itertools
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.capture.bpf import cpu_sampling
from otel_gpu.capture.bpf.cpu_sampling import OnCpuSampling, TickBudget
from otel_gpu.config import load
from otel_gpu.errors import BpfError

RATE_HZ = 99
BUDGET = 200
BURST = 100  # CPU_SAMPLE_BURST of bpf/sched/on_cpu.bpf.c
READING_S = 0.5


class Clock(NamedTuple):
    """What runs on a CPU, and all periods that clocks ever had."""

    stop: Callable[[], None]
    periods_ns: list[int]

    def set_period(self, period_ns):
        self.periods_ns.append(period_ns)


class Host:
    """The kernel side: so many CPUs with clocks, some of which find a watched thread each time."""

    def __init__(self, cpus):
        self.cpus = cpus
        self.clocks = set()
        self.one_in = 0
        self.ticks = 0
        self.samples = []  # (second, weight in ticks)
        self._arrival_s = 0.0
        self._chance = random.Random(7)  # noqa: S311 -- the same ticks every time
        self.now_s = 0.0
        self.refuses = False
        self.periods_ns = []

    def attach_clock(self, cpu, period_ns):
        if self.refuses:
            raise BpfError("refused")
        self.clocks.add(cpu)
        clock = Clock(lambda: self.clocks.discard(cpu), self.periods_ns)
        clock.set_period(period_ns)
        return clock

    def detach(self, link):
        link()

    def set_sampling(self, one_in, period_ns):
        self.one_in = one_in

    def read_ticks(self):
        return self.ticks

    def run(self, busy, seconds):
        """Let so many of the CPUs work for a while; ticks come one after the other."""
        ticks = round(busy * RATE_HZ * seconds)
        for _ in range(ticks):
            self.now_s += seconds / ticks
            self.ticks += 1
            if self._chance.randrange(self.one_in):
                continue
            arrival_s = max(self._arrival_s, self.now_s)
            if arrival_s - self.now_s <= BURST / BUDGET:
                self._arrival_s = arrival_s + 1 / BUDGET
                self.samples.append((self.now_s, self.one_in))
        if not ticks:
            self.now_s += seconds


@pytest.fixture
def sampling_of(monkeypatch):
    def sampling_of(host, **options):
        monkeypatch.setattr(cpu_sampling, "_online_cpus", lambda: set(range(host.cpus)))
        config = load(None, {}, {f"samples.{name}": value for name, value in options.items()})
        return OnCpuSampling(host, config, clock=lambda: host.now_s)

    return sampling_of


def run(host, sampling, busy, seconds):
    """The agent reads at intervals, as it does."""
    for _ in range(round(seconds / READING_S)):
        host.run(busy, READING_S)
        sampling.adjust(is_watching=True)


def test_sixty_four_busy_threads_stay_inside_the_budget(sampling_of):
    """Of 128 CPUs, from the first second on; and their samples stand for all of their time."""
    host = Host(128)
    sampling = sampling_of(host)
    sampling.adjust(is_watching=True)

    run(host, sampling, 64, 30)

    assert len(host.samples) <= 30 * BUDGET + BURST
    for second in range(30):
        assert sum(second <= at_s < second + 1 for at_s, _ in host.samples) <= 1.1 * BUDGET + 20
    weight_s = sum(weight for _, weight in host.samples) / RATE_HZ
    assert weight_s == pytest.approx(64 * 30, rel=0.05)


def test_threads_that_begin_at_once_are_held_back_until_the_next_reading(sampling_of):
    """From one busy CPU to all of 128: the kernel side's burst, and no more than the budget."""
    host = Host(128)
    sampling = sampling_of(host)
    sampling.adjust(is_watching=True)
    run(host, sampling, 1, 10)
    assert host.one_in == 1
    before = len(host.samples)

    run(host, sampling, 128, 10)

    assert len(host.samples) - before <= 10 * BUDGET + BURST
    assert host.one_in == 64
    # The last ones are of the new rate.
    late_s = sum(weight for at_s, weight in host.samples if at_s >= 11) / RATE_HZ
    assert late_s == pytest.approx(128 * 9, rel=0.05)


def test_two_busy_cpus_are_sampled_at_every_tick(sampling_of):
    host = Host(2)
    sampling = sampling_of(host)
    sampling.adjust(is_watching=True)

    run(host, sampling, 2, 5)

    assert len(host.samples) == host.ticks == 990


@given(
    readings=st.lists(st.integers(0, 200_000), max_size=30),
    budget=st.integers(1, 100_000),
    first=st.integers(0, 1_000_000),
)
def test_what_was_seen_would_have_fitted(readings, budget, first):
    """The number rises at once, falls by half at most, and is never less than 1."""
    tick_budget = TickBudget(budget, first)
    assert first <= tick_budget.one_in * budget
    for ticks in readings:
        before = tick_budget.one_in
        one_in = tick_budget.take(ticks, 1.0)

        assert ticks <= one_in * budget
        assert one_in >= max(1, before / 2)
        assert one_in <= max(before, ticks / budget + 1)


def test_a_reading_that_took_no_time_changes_nothing():
    budget = TickBudget(200, 2_000)

    assert budget.take(1_000_000, 0.0) == 10


def test_clocks_are_on_the_cpus_that_are_there(sampling_of):
    """A CPU may come and go; and without a process to watch, there is none."""
    host = Host(4)
    sampling = sampling_of(host)

    sampling.adjust(is_watching=False)
    assert host.clocks == set()
    sampling.adjust(is_watching=True)
    assert host.clocks == {0, 1, 2, 3}
    host.cpus = 2
    sampling.adjust(is_watching=True)
    assert host.clocks == {0, 1}
    host.cpus = 3
    sampling.adjust(is_watching=True)
    assert host.clocks == {0, 1, 2}
    sampling.adjust(is_watching=False)
    assert host.clocks == set()


def test_periods_differ_from_reading_to_reading(sampling_of):
    """By more than a hundredth, and none is shorter than was asked for."""
    host = Host(1)
    sampling = sampling_of(host)
    sampling.adjust(is_watching=True)

    run(host, sampling, 1, 100)

    periods = [period_ns * RATE_HZ / 1e9 for period_ns in host.periods_ns]
    assert len(periods) == 1 + round(100 / READING_S)
    assert all(abs(a / b - 1) > 0.01 for a, b in itertools.pairwise(periods))
    assert min(periods) >= 0.999
    assert max(periods) <= 1.2


def test_clocks_that_find_nothing_stay_as_they_are_until_a_cpu_comes(sampling_of):
    """A program at rest costs no calls of the kernel; what works again is met at another period each time."""
    host = Host(2)
    sampling = sampling_of(host)
    sampling.adjust(is_watching=True)
    run(host, sampling, 2, 5)
    run(host, sampling, 0, 5)
    at_rest = len(host.periods_ns)
    run(host, sampling, 0, 60)

    assert len(host.periods_ns) == at_rest
    host.cpus = 3
    run(host, sampling, 0, READING_S)
    assert host.clocks == {0, 1, 2}
    before = len(host.periods_ns)
    run(host, sampling, 1, 5)
    assert len(set(host.periods_ns[before:])) == round(5 / READING_S)


def test_a_kernel_that_refuses_is_asked_once(sampling_of):
    host = Host(4)
    sampling = sampling_of(host)
    host.refuses = True

    with pytest.raises(BpfError):
        sampling.adjust(is_watching=True)

    host.refuses = False
    sampling.adjust(is_watching=True)
    assert host.clocks == set()


@pytest.mark.parametrize("option", ["samples.enabled", "stacks.enabled", "spans.mode"])
def test_it_can_be_switched_off(option):
    """By itself, with all stacks, or with all spans."""
    host = Host(4)
    value = "none" if option == "spans.mode" else False
    sampling = OnCpuSampling(host, load(None, {}, {option: value}))

    sampling.adjust(is_watching=True)

    assert host.clocks == set()


def test_online_cpus_are_read_as_ranges(tmp_path, monkeypatch):
    (tmp_path / "online").write_text("0-2,5,8-9\n")
    monkeypatch.setattr(cpu_sampling, "_ONLINE", tmp_path / "online")

    assert cpu_sampling._online_cpus() == {0, 1, 2, 5, 8, 9}
