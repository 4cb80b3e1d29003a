"""Who is to blame: each effect counts once, and no time twice."""

from otel_gpu.enrich.identity.identities import Culprit, key_of
from otel_gpu.explain.chains import Cause, Chain, Effect
from otel_gpu.explain.kinds import CauseKind, EffectKind, Severity
from otel_gpu.report.chains import ChainRows
from tests.activities import MS, T0, image

TRAINER = image(42)
LOADER, OTHER = Culprit(77, 77, "loader"), Culprit(78, 78, "loader")


def blames_of(*causes):
    """By culprit and kind, for how long and in how many effects of one."""
    effect = Effect(
        *(EffectKind.SLOW_GAP, TRAINER, "cudaLaunchKernel", 42, "trainer"),
        *(T0, 100 * MS, 90 * MS, b"t" * 16, b"s" * 8),
    )
    rows = ChainRows()
    rows.add(Chain("chain-1", effect, causes, 0, Severity.HIGH))
    assert {key_of(row.process) for row in rows.culprit_times()} == {key_of(TRAINER)}
    return {
        (row.culprit.pid, str(row.kind)): (row.time_ns // MS, row.effects)
        for row in rows.culprit_times()
    }


def cause(kind, time_ms, culprit, *via, others=()):
    """A cause of so many milliseconds."""
    made = Cause(kind, time_ms * MS, time_ms / 100, culprit, (), via)
    return made._replace(others=others)


def test_what_is_a_part_of_the_same_is_in_it():
    """A loader is waited for, and waits for data itself for a part of that."""
    own = cause(CauseKind.IPC, 30, LOADER)
    worked = cause(CauseKind.HOST_WORK, 40, LOADER)

    assert blames_of(cause(CauseKind.IPC, 80, LOADER, worked, own)) == {
        (77, "ipc"): (80, 1),
        (77, "host_work"): (40, 1),
    }


def test_two_waits_for_one_are_one_effect():
    assert blames_of(cause(CauseKind.IPC, 20, LOADER), cause(CauseKind.IPC, 30, LOADER)) == {
        (77, "ipc"): (50, 1)
    }


def test_all_who_are_to_blame_alike_have_all_of_the_time():
    waited = cause(CauseKind.COLLECTIVE_WAIT, 80, LOADER, others=(OTHER,))

    assert blames_of(waited) == {
        (77, "collective_wait"): (80, 1),
        (78, "collective_wait"): (80, 1),
    }
