"""For whom ranks wait in collectives: named where it is known, and nobody where all is well."""

import dataclasses

import pytest

from otel_gpu import wire
from otel_gpu.explain.explainer import Explainer
from otel_gpu.explain.kinds import CauseKind, EffectKind
from otel_gpu.explain.nccl.collective_names import absence_text
from otel_gpu.explain.settings import Settings
from otel_gpu.procfs.jobs import RANK
from tests.activities import (
    MS,
    SECOND,
    calls,
    capture,
    ended,
    open_call,
    snapshot,
)
from tests.communicator_activities import ALL_REDUCE, ID, collectives, ranks, reading
from tests.unit.explain.streams import HOG, START, off_cpu, slow, usual

WORLD = 4


def chains_of(*activities, settings=None):
    """The chains of a stream, and the explainer."""
    explainer = Explainer(settings)
    found = [chain for one in (capture(), *activities) for chain in explainer.push(one)]
    return [*found, *explainer.close()], explainer


def incidents_of(*activities, settings=None):
    """The incidents of a stream."""
    return chains_of(*activities, settings=settings)[1].incidents()


def polls(process, at_s, count):
    """A reading in which a process asked so often whether something is done."""
    return snapshot(at_s, calls(process, "cudaEventQuery", [1_000] * count))


def late_rank(late_ms=80, **last):
    """Four ranks, of which the last one calls the second collective late; the others wait for it."""
    world = ranks(WORLD)
    first = START - 100 * MS
    for rank, process in enumerate(world):
        delay = late_ms * MS if rank == WORLD - 1 else 0
        made = collectives([first, START + delay])
        values = last if rank == WORLD - 1 else {}
        yield reading(process, 101, made, completed=2, rank=rank, **values)


def hog_on(process, at_ms, each_ms, count):
    """Stalls of a rank whose CPU another process takes away, slice by slice."""
    for number in range(count):
        yield off_cpu(
            at_ms + number * (each_ms + 1),
            0,
            each_ms,
            process=process,
            switch_type=wire.SWITCH_INVOLUNTARY,
            **HOG,
        )


class TestLateRank:
    def test_is_named_with_what_kept_it(self):
        """The time until it called is its, and the hog that had its CPU is the cause of the cause."""
        world = ranks(WORLD)
        waited = slow(process=world[0], duration_ms=100)

        chains, _ = chains_of(
            usual(world[0]), *late_rank(), *hog_on(world[3], 0, 15, 5), waited, usual(at_s=110)
        )

        (chain,) = chains
        cause, rest = chain.causes
        assert cause.kind == CauseKind.COLLECTIVE_WAIT
        assert cause.time_ns == 80 * MS
        assert (cause.culprit.pid, cause.culprit.tid) == (world[3].pid, world[3].pid)
        assert cause.resource.name == f"communicator {ID:016x}, rank 3 last"
        (by_hog,) = [one for one in cause.via if one.kind == CauseKind.PREEMPTION]
        assert by_hog.time_ns == 75 * MS
        assert by_hog.culprit.pid == 900
        assert (rest.kind, rest.time_ns) == (CauseKind.GPU_WAIT, 20 * MS)

    def test_who_stopped_waiting_before_it_came_did_not_wait_for_it(self):
        """A wait that ends before another rank calls was for something else."""
        world = ranks(WORLD)

        chains, _ = chains_of(
            usual(world[0]), *late_rank(120), slow(process=world[0]), usual(at_s=110)
        )

        (chain,) = chains
        assert [cause.kind for cause in chain.causes] == [CauseKind.GPU_WAIT]

    def test_the_late_one_waits_for_nobody(self):
        """Who comes last waits for the device alone."""
        world = ranks(WORLD)

        chains, _ = chains_of(
            usual(world[3]), *late_rank(), slow(process=world[3]), usual(at_s=110)
        )

        (chain,) = chains
        assert [cause.kind for cause in chain.causes] == [CauseKind.GPU_WAIT]

    def test_time_without_a_cpu_is_not_the_wait(self):
        """While it waits for a CPU itself, the other rank costs nothing."""
        world = ranks(WORLD)
        lost = off_cpu(10, 0, 30, process=world[0], switch_type=wire.SWITCH_INVOLUNTARY, **HOG)
        waited = slow(process=world[0], duration_ms=100, run_queue_ns=30 * MS)

        chains, _ = chains_of(usual(world[0]), *late_rank(), lost, waited, usual(at_s=110))

        (chain,) = chains
        assert {cause.kind: cause.time_ns for cause in chain.causes} == {
            CauseKind.COLLECTIVE_WAIT: 50 * MS,
            CauseKind.PREEMPTION: 30 * MS,
            CauseKind.GPU_WAIT: 20 * MS,
        }

    def test_all_that_wait_are_one_incident(self):
        """What one rank costs the others is told once, with all the time that they lost."""
        world = ranks(WORLD)
        waits = [slow(process=process, duration_ms=100) for process in world[:3]]

        (incident,) = incidents_of(
            *(usual(process) for process in world[:3]),
            *late_rank(),
            *hog_on(world[3], 0, 15, 5),
            *waits,
            usual(at_s=110),
        )

        assert {process.pid for process in incident.processes} == {1000, 1001, 1002}
        assert incident.causes[0].kind == CauseKind.COLLECTIVE_WAIT
        assert incident.causes[0].time_ns == 3 * 80 * MS
        assert incident.severity == "high"

    @pytest.mark.parametrize(
        "values",
        [
            {"identity": 0},
            {"flags": wire.COMMUNICATOR_LATE},
        ],
    )
    def test_numbers_that_are_not_comparable_say_nothing(self, values):
        """Of a communicator that was made before it was watched, nobody is named."""
        world = ranks(WORLD)
        readings = [
            reading(
                process,
                101,
                collectives([START - 100 * MS, START + (80 * MS if rank == 3 else 0)]),
                rank=rank,
                **values,
            )
            for rank, process in enumerate(world)
        ]

        chains, _ = chains_of(usual(world[0]), *readings, slow(process=world[0]), usual(at_s=110))

        (chain,) = chains
        assert [cause.kind for cause in chain.causes] == [CauseKind.GPU_WAIT]


def hanging(
    called, *, signatures=None, polling=True, completed=4, open_in=(), until_s=120, **values
):
    """Ranks that called so many collectives, a second apart, and what is seen until later."""
    world = ranks(len(called))
    for rank, (process, count) in enumerate(zip(world, called, strict=True)):
        made = collectives([START + n * SECOND // 100 for n in range(count)])
        if signatures is not None:
            made[-1] = made[-1]._replace(signature=signatures[rank])
        yield reading(
            process,
            101,
            made,
            completed=min(completed, count),
            rank=rank,
            rank_count=values.get("of", len(called)),
            flags=values.get("flags", {}).get(rank, 0),
        )
    for at_s in range(101, until_s):
        for process in world:
            if polling:
                yield polls(process, at_s, at_s)
        for rank in open_in:
            process = world[rank]
            yield open_call(
                process, "cudaStreamSynchronize", START + SECOND // 10, round(at_s * SECOND)
            )


class TestHang:
    @pytest.mark.parametrize("seen", [{"polling": True}, {"polling": False, "open_in": (0, 1, 3)}])
    def test_missing_rank_is_named(self, seen):
        """One that did not call what the others have is who they wait for; told once."""
        (incident,) = incidents_of(*hanging([5, 5, 4, 5], **seen))

        cause = incident.causes[0]
        assert (cause.kind, cause.culprit.pid) == (CauseKind.COLLECTIVE_WAIT, 1002)
        assert cause.resource.name == (
            f"all_reduce 5 of communicator {ID:016x}: not called by rank 2"
        )
        assert {process.pid for process in incident.processes} == {1000, 1001, 1003}
        assert incident.severity == "high"

    @pytest.mark.parametrize(
        "seen", [{"polling": True}, {"polling": False, "open_in": (0, 1, 2, 3)}]
    )
    def test_ranks_that_disagree_say_both_signatures(self, seen):
        """One that asked for another count is named, with what each asked for."""
        other = ALL_REDUCE._replace(elements=2048)

        (incident,) = incidents_of(
            *hanging([5] * 4, signatures=[ALL_REDUCE, ALL_REDUCE, other, ALL_REDUCE], **seen)
        )

        cause = incident.causes[0]
        assert (cause.kind, cause.culprit.pid) == (CauseKind.COLLECTIVE_MISMATCH, 1002)
        assert cause.resource.name == (
            f"all_reduce 5 of communicator {ID:016x}: rank 0, rank 1, rank 3 asked for all_reduce of "
            "1,024 float32 (sum), rank 2 asked for all_reduce of 2,048 float32 (sum)"
        )
        assert incident.severity == "high"

    @pytest.mark.parametrize(
        "seen", [{"polling": True}, {"polling": False, "open_in": (0, 1, 2, 3)}]
    )
    def test_all_called_and_none_done_is_the_device_or_the_network(self, seen):
        """Nobody is to blame among the ranks."""
        (incident,) = incidents_of(*hanging([5] * 4, **seen))

        cause = incident.causes[0]
        assert (cause.kind, cause.culprit) == (CauseKind.COLLECTIVE_STUCK, None)
        assert cause.resource.name == (
            f"all_reduce 5 of communicator {ID:016x}: all 4 ranks called it, and none knows it to be "
            "done: the device or the network hangs"
        )
        assert incident.severity == "high"

    def test_ranks_elsewhere_are_said_to_be_so(self):
        """Of a rank on another host it is not known whether it called."""
        (incident,) = incidents_of(*hanging([5], of=8))

        assert incident.causes[0].kind == CauseKind.COLLECTIVE_STUCK
        assert "called by 1 of 8 ranks, the others are not on this host" in (
            incident.causes[0].resource.name
        )

    def test_a_rank_that_ended_is_missing(self):
        """Its process has gone, and the others wait on."""
        world = ranks(4)
        stream = list(hanging([5, 5, 4, 5]))

        explainer = chains_of(*stream[:4], ended(world[2], 101.5), *stream[4:])[1]
        (incident,) = explainer.incidents()
        (group,) = explainer.communicators.groups()

        assert incident.causes[0].culprit.pid == 1002
        assert absence_text(group, group.standing()) == (
            "; 3 on this host called it and wait; rank 2 left it, or ended"
        )

    def test_is_one_chain_however_long_it_lasts(self):
        """It grows, and is told when it begins."""
        chains, explainer = chains_of(*hanging([5, 5, 4, 5]))
        (incident,) = explainer.incidents()

        assert [chain.effect.kind for chain in chains] == [EffectKind.HUNG_COLLECTIVE] * 3
        assert [chain.effect.api for chain in chains] == ["all_reduce"] * 3
        assert {chain.id for chain in incident.chains} == {chain.id for chain in chains}
        assert all(chain.effect.duration_ns > 18 * SECOND for chain in incident.chains)

    def test_is_told_once_where_a_call_is_found_to_hang_in_it_later(self):
        """Also if nothing is heard after that: the ranks were killed, say."""
        polled = hanging([5, 5, 4, 5], until_s=108)
        calls = [
            open_call(rank, "cudaStreamSynchronize", START + SECOND // 10, 108 * SECOND)
            for rank in ranks(4)
            if rank.pid != 1002
        ]

        (incident,) = incidents_of(*polled, *calls)

        assert incident.effects == 3
        assert {chain.effect.kind for chain in incident.chains} == {EffectKind.HUNG_CALL}

    def test_is_over_when_the_rank_comes(self):
        """What it cost by then stays; it is not said to hang any more."""
        world = ranks(4)
        came = [
            reading(
                process,
                120.5,
                collectives([START + n * SECOND // 100 for n in range(4)] + [START + 20 * SECOND]),
                completed=5,
                rank=rank,
            )
            for rank, process in enumerate(world)
        ]

        (incident,) = incidents_of(*hanging([5, 5, 4, 5]), *came, polls(world[0], 140, 999))

        assert incident.end_unix_ns < incident.start_unix_ns + 20 * SECOND


def parallel(stuck=1, until_s=120, open_in=()):
    """Two by two ranks, tensor and data parallel: one does not call in its tensor group, its peer not in its data group."""
    world = [
        dataclasses.replace(process, attributes={**process.attributes, RANK: rank})
        for rank, process in enumerate(ranks(WORLD))
    ]
    groups = {0x71: (0, 1), 0x72: (2, 3), 0xD1: (0, 2), 0xD2: (1, 3)}
    for identity, members in groups.items():
        is_tensor = identity < 0xD0
        for place, rank in enumerate(members):
            is_behind = rank == stuck or (rank ^ 1 == stuck and not is_tensor)
            made = collectives([START + n * SECOND // 100 for n in range(4 + (not is_behind))])
            is_over = is_tensor and stuck not in members
            yield reading(
                world[rank],
                101,
                made,
                completed=5 if is_over else 4,
                identity=identity,
                handle=(identity, 0),
                rank=place,
                rank_count=2,
            )
    for at_s in range(101, until_s):
        for rank, process in enumerate(world):
            if rank in open_in:
                yield open_call(
                    process, "cudaStreamSynchronize", START + SECOND // 10, round(at_s * SECOND)
                )
            elif rank != stuck:
                yield polls(process, at_s, at_s)


class TestSeveralGroups:
    @pytest.mark.parametrize("open_in", [(), (0,), (0, 2, 3)])
    def test_waits_are_followed_to_the_rank_that_waits_for_nobody(self, open_in):
        """Whoever waits for a rank that waits itself, in a call or by asking, waits for the last one."""
        (incident,) = incidents_of(*parallel(open_in=open_in))

        assert {process.pid for process in incident.processes} == {1000, 1002, 1003}
        causes = {chain.effect.process.pid: chain.causes[0] for chain in incident.chains}
        assert {pid: cause.culprit.pid for pid, cause in causes.items()} == {
            1000: 1001,
            1002: 1000,
            1003: 1001,
        }
        (through,) = causes[1002].via
        assert (through.kind, through.culprit.pid) == (CauseKind.COLLECTIVE_WAIT, 1001)
        assert through.time_ns > 0.9 * causes[1002].time_ns

    def test_ranks_have_their_numbers_of_the_job(self):
        """In the data group rank 3 is the second one, and its peer the first."""
        (incident,) = incidents_of(*parallel())

        told = sorted(cause.resource.name.partition(": ")[2] for cause in incident.causes)
        assert told == ["not called by rank 0", "not called by rank 1", "not called by rank 1"]


def test_all_ranks_that_did_not_call_are_to_blame():
    """None of them more than the others."""
    (incident,) = incidents_of(*hanging([5, 4, 4, 5]))

    (cause,) = incident.causes
    assert [culprit.pid for culprit in cause.culprits] == [1001, 1002]
    assert cause.resource.name.endswith("not called by rank 1, rank 2")
    assert sum(one.time_ns for one in cause.via) == pytest.approx(cause.time_ns, rel=0.01)


@pytest.mark.parametrize(("odd", "named"), [((2,), [1002]), ((2, 3), [1000, 1001, 1002, 1003])])
def test_where_half_disagree_it_is_not_known_who_is_wrong(odd, named):
    """More than half of the ranks have to ask for the same."""
    other = ALL_REDUCE._replace(elements=2048)
    asked = [other if rank in odd else ALL_REDUCE for rank in range(4)]

    (incident,) = incidents_of(*hanging([5] * 4, signatures=asked))

    (cause,) = incident.causes
    assert [culprit.pid for culprit in cause.culprits] == named


class TestHealthy:
    @pytest.mark.parametrize(
        ("what", "stream"),
        [
            ("all done", hanging([5] * 4, completed=5)),
            ("nobody asks", hanging([5, 5, 4, 5], polling=False)),
            ("nothing asked for long", hanging([5, 5, 4, 5], until_s=102)),
            ("device is busy", hanging([5] * 4, until_s=109)),
            ("one rank alone, all done", hanging([5], completed=5, of=8)),
            ("numbers are not theirs", hanging([5, 5, 4, 5], flags=dict.fromkeys(range(4), 1))),
            ("left in order", hanging([5, 5, 4, 5], flags=dict.fromkeys((0, 1, 3), 4))),
            ("not all have begun", hanging([1, 1, 0, 1], completed=0, until_s=109)),
            ("point to point only", hanging([0, 0, 0, 0], completed=0)),
        ],
    )
    def test_raises_nothing(self, what, stream):
        """A stream of ranks that are well has no incident."""
        assert incidents_of(*stream) == [], what

    def test_a_device_that_usually_takes_long_may_do_so_again(self):
        """A step of half a minute is known to be one after the first."""
        world = ranks(2)
        first = [
            reading(process, 60, collectives([START - 60 * SECOND]), rank=rank, rank_count=2)
            for rank, process in enumerate(world)
        ]
        done = [
            reading(
                process,
                95,
                collectives([START - 60 * SECOND]),
                rank=rank,
                rank_count=2,
                completed=1,
                waited_ns=30 * SECOND,
            )
            for rank, process in enumerate(world)
        ]
        again = [
            reading(
                process,
                100,
                collectives([START - 60 * SECOND, START]),
                rank=rank,
                rank_count=2,
                completed=1,
                waited_ns=30 * SECOND,
            )
            for rank, process in enumerate(world)
        ]
        asking = [polls(process, at_s, at_s) for at_s in range(100, 130) for process in world]

        assert incidents_of(*first, *done, *again, *asking) == []


def test_settings_say_how_long_it_takes():
    """A hang of half a second is one if that is what one wants to know."""
    settings = dataclasses.replace(Settings(), collective_stuck_ns=SECOND // 2)

    (incident,) = incidents_of(*hanging([5] * 4, until_s=104), settings=settings)

    assert incident.causes[0].kind == CauseKind.COLLECTIVE_STUCK
