"""Comparisons: what can be compared at all, what is more than noise, and where it comes from."""

import pytest

from otel_gpu.report.comparison.comparison import (
    Basis,
    ComparisonOutcome,
    DeltaKind,
    Side,
    alike,
    compare,
)

MS = 1_000_000
WORK = {"gemm": 10.0, "relu": 5.0}
STEPS = (100 * MS, 101 * MS, 99 * MS, 100 * MS)


def side(times_ns=STEPS, **more):
    given = {"basis": Basis.STEP, "devices": ("H100",), "work": WORK, "tool": "torch.profiler"}
    return Side("x", times_ns=tuple(times_ns), **given | more)


def times(factor, of=STEPS):
    return [time_ns * factor for time_ns in of]


def test_the_same_is_neutral():
    """Nothing differs, so nothing is said."""
    found = compare(side(), side())

    assert found.comparable
    assert (found.outcome, found.change, found.reasons, found.deltas) == (
        ComparisonOutcome.NEUTRAL,
        0,
        (),
        (),
    )


@pytest.mark.parametrize(
    ("factor", "outcome"),
    [
        (1.2, ComparisonOutcome.SLOWER),
        (1.051, ComparisonOutcome.SLOWER),
        (1.049, ComparisonOutcome.NEUTRAL),
        (0.951, ComparisonOutcome.NEUTRAL),
        (0.949, ComparisonOutcome.FASTER),
    ],
)
def test_five_percent_are_a_change(factor, outcome):
    """Where steps hardly differ among themselves."""
    assert compare(side(), side(times(factor))).outcome is outcome


def test_what_steps_differ_by_is_no_change():
    """A tenth more is nothing where steps differ by half of their time."""
    wild = [50 * MS, 150 * MS, 80 * MS, 120 * MS]

    found = compare(side(wild), side(times(1.1, wild)))

    assert found.change == pytest.approx(0.1)
    assert found.noise > 0.4
    assert found.outcome is ComparisonOutcome.NEUTRAL
    assert not found.is_slower_by(0.05)


def test_the_noise_has_a_floor():
    """Steps that are all alike prove nothing about the next run."""
    found = compare(side([100 * MS] * 9), side([101.5 * MS] * 9))

    assert found.noise == 0.02
    assert not found.is_slower_by(0.01)
    assert compare(side([100 * MS] * 9), side([103 * MS] * 9)).is_slower_by(0.01)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"devices": ("A100",)}, "different devices: H100 against A100"),
        ({"devices": ("",)}, "one has H100, and what the other has is not known"),
        ({"devices": ("H100", "H100")}, "one has 1 devices, the other 2"),
        ({"work": {"other": 15.0}}, "0 % alike"),
        ({"basis": Basis.WINDOW}, "known by its step, the other by its window"),
        ({"faults": ("too much of it is damaged",)}, "too much of it is damaged"),
        ({"times_ns": ()}, "says nothing of time"),
    ],
)
def test_what_cannot_be_compared_says_why(other, reason):
    """And no time is set against another one."""
    a = side(figures={(DeltaKind.CAUSE, "sync"): 5.0, (DeltaKind.MEMORY, "peak"): 100.0})
    b = a._replace(
        figures={(DeltaKind.CAUSE, "sync"): 9.0, (DeltaKind.MEMORY, "peak"): 300.0}, **other
    )

    found = compare(a, b)

    assert (found.comparable, found.outcome) == (False, ComparisonOutcome.NOT_COMPARABLE)
    assert any(reason in one for one in found.reasons)
    assert found.change is None
    assert [(one.kind, one.change) for one in found.deltas] == [(DeltaKind.MEMORY, 200)]


def test_shares_can_be_compared_on_any_device():
    """A device that is idle for a tenth of its time is so however fast it is."""
    a = side(figures={(DeltaKind.PHASE, "computing"): 90.0, (DeltaKind.PHASE, "idle"): 10.0})
    b = side(
        devices=("A100",),
        figures={(DeltaKind.PHASE, "computing"): 30.0, (DeltaKind.PHASE, "idle"): 10.0},
    )

    found = compare(a, b)

    assert {one.what: (one.a, one.b) for one in found.of(DeltaKind.SHARE)} == {
        "computing": (0.9, 0.75),
        "idle": (0.1, 0.25),
    }
    assert not found.of(DeltaKind.PHASE)
    damaged = b._replace(faults=("too much of it is damaged",))
    assert compare(a, damaged).deltas == ()


@pytest.mark.parametrize(
    ("grids", "reason"),
    [
        ({("gemm_128", 8.0): 10.0}, "they have no kernel in common"),
        ({("gemm", 16.0): 10.0}, "the grids of their kernels are 0 % alike"),
        ({("gemm", 8.0): 10.0}, ""),
        ({("gemm", -1.0): 10.0}, ""),
    ],
)
def test_where_shapes_are_not_known_kernels_have_to_be_of_the_same_size(grids, reason):
    """The operators are the same, but a batch of twice the size is no slower program."""
    operators = {"mm": 10.0}
    a = side(operators=operators, grids={("gemm", 8.0): 10.0})
    b = side(times(2), operators=operators, grids=grids)

    found = compare(a, b)

    assert found.comparable == (not reason)
    assert any(one.startswith(reason) for one in found.reasons) or not reason
    assert found.is_slower_by(0.05) == (not reason)
    # Of the same shapes, other kernels are what one may compare for.
    shapes = {("mm", "32"): 10.0}
    assert compare(a._replace(shapes=shapes), b._replace(shapes=shapes)).comparable


def test_ranks_shapes_and_programs_have_to_be_the_same():
    """Another batch makes another step."""
    a = side(ranks=8, shapes={("mm", "32"): 10.0}, programs=frozenset({"train.py"}))
    b = side(ranks=2, shapes={("mm", "64"): 10.0}, programs=frozenset({"serve.py"}))

    assert compare(a, b).reasons == (
        "one run has 8 ranks, the other 2",
        "other programs: train.py against serve.py",
        "the shapes of their inputs are 0 % alike: another batch, or another model",
    )


def test_what_is_not_known_is_no_hindrance():
    """It is said, and the comparison goes on."""
    found = compare(side(devices=("",)), side(devices=("",), ranks=2, shapes={("mm", ""): 1.0}))

    assert found.comparable
    assert found.reasons == ("which devices they had is not known",)


def test_other_kernels_of_the_same_operators_are_compared():
    """Other types of numbers, or a compiler: that is what one compares for."""
    a = side(operators={"mm": 10.0}, shapes={("mm", "32"): 10.0})
    b = side(times(0.5), work={"tf32_gemm": 10.0}, operators={"mm": 10.0, "relu": 1.0},
             shapes={("mm", "32"): 10.0, ("relu", "64"): 1.0})  # fmt: skip

    found = compare(a, b)

    assert (found.outcome, found.reasons) == (ComparisonOutcome.FASTER, ())


def test_windows_have_to_be_of_the_same_work():
    """A longer window has more of everything."""
    a = side([100 * MS], basis=Basis.WINDOW)
    much = {name: count * 1.5 for name, count in WORK.items()}

    assert not compare(a, side([150 * MS], basis=Basis.WINDOW, work=much)).comparable
    found = compare(a, side([104 * MS], basis=Basis.WINDOW))
    assert found.outcome is ComparisonOutcome.NEUTRAL
    assert "the windows are compared" in found.reasons[0]


def test_what_makes_one_doubt_is_said():
    """Stacks take time, and other tools measure otherwise."""
    found = compare(side(has_stacks=True), side([100 * MS], tool="Nsight Systems"))

    assert found.comparable
    assert [one.partition(",")[0] for one in found.reasons] == [
        "only the first was recorded with stacks",
        "recorded by different tools: torch.profiler and Nsight Systems",
        "there is one step only: how much steps differ is not known",
    ]


def test_deltas_are_in_order_of_what_changed():
    """By kind; what one of them lacks took no time there."""
    a = side(figures={(DeltaKind.PART, "kernel"): 50.0, (DeltaKind.PART, "data_loader"): 40.0})
    b = side(figures={(DeltaKind.PART, "kernel"): 51.0, (DeltaKind.PART, "call"): 4.0})

    found = compare(a, b)

    assert [(one.what, one.change) for one in found.of(DeltaKind.PART)] == [
        ("data_loader", -40),
        ("call", 4),
        ("kernel", 1),
    ]


@pytest.mark.parametrize(
    ("a", "b", "share"),
    [
        ({}, {}, 1),
        ({"x": 2}, {"x": 2}, 1),
        ({"x": 2}, {"y": 2}, 0),
        ({"x": 4}, {"x": 3, "y": 1}, 0.6),
    ],
)
def test_how_alike_counts_are(a, b, share):
    """What both have, of all that either has."""
    assert alike(a, b) == share
