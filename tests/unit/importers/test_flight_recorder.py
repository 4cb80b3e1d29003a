"""Dumps of Flight Recorders: how far each rank came, from what each of them wrote."""

import json
import os
import pickle

import pytest

from otel_gpu import cli, wire
from otel_gpu.config import Config
from otel_gpu.enrich.activities import CommunicatorActivity
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.errors import RecordingError
from otel_gpu.importers import open_capture
from otel_gpu.importers.flight_recorder import dump as dumps
from otel_gpu.wire.communicators import Signature
from tests.unit.importers.flight_dumps import (
    FRAMES,
    HELD_UP,
    STEP,
    T0,
    as_json,
    as_torch,
    dump,
    entry,
    run,
    write,
)

AT = T0 + 60 * 10**9


def activities(capture):
    enriched = Enricher().enrich(capture.events())
    return [one for one in enriched if isinstance(one, CommunicatorActivity)]


def read(paths):
    """Return the activities by the rank of the job, and what the import says of itself."""
    for path in paths:
        os.utime(path, ns=(AT, AT))
    with open_capture("nccl-flight-recorder", paths[0], Config(), others=paths[1:]) as capture:
        read = activities(capture)
    found = {}
    for one in read:
        found.setdefault(one.process.attributes["otel_gpu.rank"], []).append(one)
    return found, capture.counts


def read_one(folder, made, form=as_torch):
    found, tally = read(write(folder, {0: made}, form))
    return [one.communicator for one in found[0]], tally


def test_the_pickle_of_the_tests_is_one():
    """Python's own reader finds in it what was written."""
    made = run(300, done=298)

    assert pickle.loads(as_torch(made)) == made  # noqa: S301 -- written here


@pytest.mark.parametrize("form", [as_torch, as_json, lambda made: pickle.dumps(made, protocol=4)])
def test_each_rank_says_how_far_it_is(tmp_path, form):
    """Three ranks called the 57th collective, and one did not."""
    ranks = {rank: run(56 if rank == 2 else 57, done=56) for rank in range(4)}

    found, tally = read(write(tmp_path, ranks, form))

    assert sorted(found) == [0, 1, 2, 3]
    for rank, (one,) in found.items():
        communicator = one.communicator
        assert (communicator.rank, communicator.rank_count) == (rank, 4)
        assert (communicator.called, communicator.completed) == (56 if rank == 2 else 57, 56)
        assert communicator.operations == {
            wire.COLLECTIVE_ALL_REDUCE: (communicator.called, communicator.called * 4096)
        }
        assert (communicator.completions, communicator.waited_ns) == (56, 56 * 4_000_000)
        assert communicator.name == "0 (default_pg)"
        assert one.process.attributes["otel_gpu.world_size"] == 4
        assert "process.pid" not in one.process.attributes
        assert one.recent_unix_ns[-1] == T0 + communicator.called * STEP
        assert one.unix_ns == AT
    assert len({one.communicator.id for (one,) in found.values()}) == 1
    assert tally.taken["entries"] == 227
    assert tally.source["ranks"] == 4
    assert not tally.rejected


def test_the_stack_of_each_call_is_told(tmp_path):
    """Where the pending collective was called, on each rank, and where the last one was on the late rank."""
    late = dump([*run(55, done=55)["entries"], entry(56, frames=HELD_UP)])
    found, _ = read(write(tmp_path, {0: run(57, done=56), 1: late}))

    assert found[0][0].process.comm == "rank 0"
    waiting, other = found[0][0].stacks[-1], found[1][0].stacks[-1]
    assert [(one.function, one.file, one.line) for one in waiting.frames] == [
        (frame["name"], frame["filename"], frame["line"]) for frame in FRAMES
    ]
    assert waiting.complete
    assert (other.frames[-1].function, other.frames[-1].line) == ("log_loss", 7)
    assert len(found[0][0].stacks) == len(found[0][0].communicator.recent)


def test_json_has_no_stacks(tmp_path):
    """None is made up."""
    found, _ = read(write(tmp_path, {0: run(3, done=2)}, as_json))

    assert found[0][0].stacks == (None, None, None)


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "expected"),
    [
        ("nccl:all_reduce", [[4, 8]], [[4, 8]], (wire.COLLECTIVE_ALL_REDUCE, 32)),
        ("nccl:all_reduce_barrier", [[1]], [[1]], (wire.COLLECTIVE_ALL_REDUCE, 1)),
        ("nccl:allreduce_coalesced", [[4], [5]], [[4], [5]], (wire.COLLECTIVE_ALL_REDUCE, 9)),
        ("nccl:_all_gather_base", [[8]], [[32]], (wire.COLLECTIVE_ALL_GATHER, 8)),
        ("nccl:ALLGATHER_coalesced", [[8]], [[32]], (wire.COLLECTIVE_ALL_GATHER, 8)),
        ("nccl:_reduce_scatter_base", [[32]], [[8]], (wire.COLLECTIVE_REDUCE_SCATTER, 8)),
        ("nccl:broadcast", [[7]], [[7]], (wire.COLLECTIVE_BROADCAST, 7)),
        ("nccl:_broadcast_oop", [[7]], [[7]], (wire.COLLECTIVE_BROADCAST, 7)),
        ("nccl:reduce", [[7]], [[7]], (wire.COLLECTIVE_REDUCE, 7)),
        ("nccl:gather", [[7]], [[28]], (wire.COLLECTIVE_GATHER, 7)),
        ("nccl:scatter", [], [[7]], (wire.COLLECTIVE_SCATTER, 7)),
        ("nccl:all_to_all", [[7]], [[9]], (wire.COLLECTIVE_ALL_TO_ALL, 0)),
        ("nccl:all_gather_v", [[7]], [[9]], (wire.COLLECTIVE_ALL_GATHER, 0)),
        ("nccl:all_reduce", [[]], [[]], (wire.COLLECTIVE_ALL_REDUCE, 1)),
        ("gloo:all_reduce", [[3]], [[3]], (wire.COLLECTIVE_ALL_REDUCE, 3)),
        ("nccl:coalesced", [], [], (wire.COLLECTIVE_NONE, 0)),
        ("nccl:split", [], [], (wire.COLLECTIVE_NONE, 0)),
    ],
)
def test_what_a_collective_asks_for(tmp_path, name, inputs, outputs, expected):
    """In NCCL's terms: elements as its calls count them; uneven ones say nothing to compare."""
    made = entry(1, name=name, input_sizes=inputs, output_sizes=outputs)

    (communicator,), _ = read_one(tmp_path, dump([made]))

    (collective,) = communicator.recent
    datatype = 7 if made["input_dtypes"] else 255
    assert collective.signature == Signature(*expected, datatype, 255, -1)


@pytest.mark.parametrize(
    ("dtype", "number", "size"),
    [
        ("BFloat16", 9, 2),
        ("Half", 6, 2),
        ("Long", 4, 8),
        ("Float8_e5m2", 11, 1),
        ("Quaternion", 255, 0),
    ],
)
def test_datatypes_have_ncclsize(tmp_path, dtype, number, size):
    """Bytes are elements of that size; of an unknown one there are none."""
    made = entry(1, sizes=((10,),), input_dtypes=[dtype])

    (communicator,), _ = read_one(tmp_path, dump([made]))

    assert communicator.recent[0].signature.datatype == number
    assert communicator.operations == {wire.COLLECTIVE_ALL_REDUCE: (1, 10 * size)}


def test_calls_of_one_launch_are_one_collective(tmp_path):
    """A coalescing manager gives them one number; only the launch itself learns of the end."""
    parts = [
        entry(1, record=0, sizes=((8,),), state="scheduled"),
        entry(1, record=1, sizes=((24,),), state="scheduled"),
    ]
    launch = entry(
        1, record=2, name="nccl:coalesced", input_sizes=[], output_sizes=[], input_dtypes=[]
    )

    (communicator,), _ = read_one(tmp_path, dump([*parts, launch]))

    (collective,) = communicator.recent
    assert collective.signature == Signature(wire.COLLECTIVE_ALL_REDUCE, 32, 7, 255, -1)
    assert (communicator.called, communicator.completed) == (1, 1)
    assert communicator.operations == {wire.COLLECTIVE_ALL_REDUCE: (2, 128)}


def test_sends_and_receives_have_no_place_in_the_order(tmp_path):
    """They are counted, and the number of the last collective stays what it is."""
    sent = entry(9, name="nccl:send 1->2", is_p2p=True, sizes=((10,),))
    received = entry(9, name="nccl:recv 1<-0", is_p2p=True, sizes=((5,),))
    made = dump([entry(1), sent, received], pg_status={"0": {"last_enqueued_collective": 9}})
    (path,) = write(tmp_path, {1: made})

    found, _ = read([path])

    communicator = found[1][0].communicator
    assert (communicator.called, communicator.completed) == (1, 1)
    assert communicator.operations[wire.COLLECTIVE_SEND] == (1, 40)
    assert communicator.operations[wire.COLLECTIVE_RECEIVE] == (1, 20)


def test_what_pytorch_counted_goes_further_than_the_entries(tmp_path):
    """Its own count of a group without sends and receives, as number or as text."""
    status = {
        "0": {
            "last_enqueued_collective": 12,
            "last_completed_collective": 11,
            "last_started_collective": -1,
        }
    }
    for form in (as_torch, as_json):
        (communicator,), _ = read_one(tmp_path, dump([entry(10)], pg_status=status), form)

        assert (communicator.called, communicator.completed) == (12, 11)


def group(name, ranks):
    return {name: {"name": name, "desc": "undefined", "ranks": str(ranks)}}


def test_a_group_that_a_rank_never_used_is_at_zero(tmp_path):
    """The others wait for it: it must be seen to be there."""
    other = entry(1, process_group=("7", "undefined"), pg_id=3, state="scheduled")
    groups = group("7", [0, 1])

    found, _ = read(write(tmp_path, {0: dump([other], groups=groups), 1: dump([], groups=groups)}))

    by_name = [
        {one.communicator.name: one.communicator.called for one in found[rank]} for rank in (0, 1)
    ]
    assert by_name == [{"0 (default_pg)": 0, "7": 1}, {"0 (default_pg)": 0, "7": 0}]


def test_groups_of_one_name_and_other_ranks_are_different(tmp_path):
    """Two halves of a job may give theirs the same name."""
    ranks = {
        rank: dump(
            [entry(1, process_group=("7", ""))], groups=group("7", [0, 1] if rank < 2 else [2, 3])
        )
        for rank in (0, 2)
    }

    found, _ = read(write(tmp_path, ranks))

    ids = [
        one.communicator.id
        for rank in (0, 2)
        for one in found[rank]
        if one.communicator.name == "7"
    ]
    assert len(ids) == len(set(ids)) == 2


def test_of_a_full_recorder_the_oldest_collective_and_silent_groups_are_left_out(tmp_path):
    """A part of the first may be overwritten, and all of a group that was used before."""
    entries = [entry(number) for number in range(1_001, 1_011)]

    communicators, tally = read_one(tmp_path, dump(entries, groups=group("7", [0, 1])))

    (communicator,) = communicators
    assert [one.number for one in communicator.recent] == list(range(1_002, 1_011))
    assert communicator.called == 1_010
    assert any("keeps the latest entries" in note for note in tally.notes)


def test_what_is_kept_lies_around_what_is_not_done(tmp_path):
    """Of thousands of collectives, those where ranks can differ."""
    (communicator,), _ = read_one(tmp_path, run(2_000, done=1_000))

    numbers = [one.number for one in communicator.recent]
    assert numbers == [*range(1_000 - dumps.DONE_KEPT + 1, 1_000 + dumps.PENDING_KEPT + 1), 2_000]
    assert communicator.operations == {wire.COLLECTIVE_ALL_REDUCE: (2_000, 2_000 * 4096)}


@pytest.mark.parametrize(
    ("name", "made", "rank"),
    [
        ("nccl_trace_rank_3", run(1, done=1), 3),
        ("dump.2.json", run(1, done=1), 2),
        ("trace", dump([entry(1, name="nccl:send 1->2", is_p2p=True)]), 1),
        ("trace_0", dump([entry(1, name="nccl:recv 1<-0", is_p2p=True)]), 1),
        ("trace", dump([], ranks=(0, 2), groups=group("7", [2, 3])), 2),
        ("copy_9", dump([], ranks=(0, 2), groups=group("7", [2, 3])), 2),
        ("trace_17", dump([], groups={"0": {}}), 17),
    ],
)
def test_the_rank_is_said_by_the_contents_or_the_name(tmp_path, name, made, rank):
    """Who sends knows who it is; groups say who cannot be meant; else the name ends with it."""
    path = tmp_path / name
    path.write_bytes(as_torch(made))

    found, _ = read([path])

    assert list(found) in ([rank], [])
    assert found or not made["entries"]


def test_a_rank_that_nobody_says_is_asked_for(tmp_path):
    """With what to do."""
    path = tmp_path / "trace"
    path.write_bytes(as_torch(run(1, done=1)))

    with pytest.raises(RecordingError, match="contains no rank") as caught:
        read([path])
    assert "nccl_trace_rank_3" in caught.value.hint


def test_one_rank_is_in_one_file(tmp_path):
    """Dumps of two moments are not mixed."""
    first, second = tmp_path / "a_rank_1", tmp_path / "b_rank_1"
    for path in (first, second):
        path.write_bytes(as_torch(run(1, done=1)))

    with pytest.raises(RecordingError, match=r"rank 1 is also in .*a_rank_1"):
        read([first, second])


def test_a_folder_is_its_dumps(tmp_path):
    """What does not end with a number is no dump."""
    write(tmp_path, {rank: run(2, done=2) for rank in range(4)})
    (tmp_path / "README").write_text("not a dump")

    with open_capture("nccl-flight-recorder", tmp_path, Config()) as capture:
        assert capture.counts.source["ranks"] == 4


def test_a_rank_without_a_dump_is_said(tmp_path):
    """It is not called missing: nobody knows how far it came."""
    _, tally = read(write(tmp_path, {0: run(2, done=1), 3: run(2, done=1)}))

    assert "There is no dump of ranks 1, 2 of 4: how far they came is not known." in tally.notes


@pytest.mark.parametrize(("later_s", "is_own"), [(-10, False), (3_600, True), (400_000, False)])
def test_a_file_that_was_copied_later_does_not_say_when(tmp_path, later_s, is_own):
    """Then what is pending is taken to have timed out, for which dumps are made."""
    (path,) = write(tmp_path, {0: run(2, done=1)})
    last = T0 + 2 * STEP
    at = last + later_s * 10**9
    os.utime(path, ns=(at, at))

    with open_capture("nccl-flight-recorder", path, Config()) as capture:
        times = [one.unix_ns for one in activities(capture)]

    assert times == [at if is_own else last + 600 * 10**9]


def test_what_timed_out_was_pending_for_that_long(tmp_path):
    """The recorder says that it gave up, and after how long."""
    made = dump([entry(1), entry(2, state="started", retired=True)])
    (path,) = write(tmp_path, {0: made})
    os.utime(path, ns=(T0, T0))

    with open_capture("nccl-flight-recorder", path, Config()) as capture:
        (activity,) = activities(capture)

    assert activity.unix_ns == T0 + 2 * STEP + 600 * 10**9


@pytest.mark.parametrize(
    ("reason", "bad"),
    [
        ("form", 7),
        ("name", entry(1, profiling_name=None)),
        ("number", entry(0)),
        ("number", entry(1, collective_seq_id=-5)),
        ("time", entry(1, time_created_ns=0)),
        ("sizes", entry(1, input_sizes=[[-1]])),
        ("sizes", entry(1, input_sizes=[["4"]])),
        ("sizes", entry(1, input_sizes=[7])),
        ("sizes", entry(1, input_sizes=[[2] * 65])),
        ("stack", entry(1, frames=[7])),
        ("stack", entry(1, frames=[{"name": "f"}])),
    ],
)
def test_an_entry_that_makes_no_sense_is_rejected_and_counted(tmp_path, reason, bad):
    """The others are read."""
    communicators, tally = read_one(tmp_path, dump([entry(1), bad, entry(2)]))

    assert tally.rejected == {f"entries whose {reason} makes no sense": 1}
    assert communicators[0].called == 2


def test_huge_sizes_are_bounded(tmp_path):
    """What is multiplied fits into 62 bits."""
    (communicator,), _ = read_one(tmp_path, dump([entry(1, sizes=(((1 << 61),) * 64,))]))

    assert communicator.recent[0].signature.elements == (1 << 62) - 1


def test_several_files_on_the_command_line(tmp_path, capsys, monkeypatch):
    """The report is of all of them."""
    monkeypatch.setenv("OTEL_GPU_STORE_ENABLED", "off")
    paths = write(tmp_path, {rank: run(3, done=2) for rank in range(4)})

    assert cli.main(["import", "nccl-flight-recorder", *map(str, paths), "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document["import"]["taken"] == {"entries": 12, "process groups of ranks": 4}
    assert document["import"]["source"]["nccl version"] == "2.27.5"


def test_other_kinds_are_one_file(tmp_path, capsys):
    """Several are refused."""
    assert cli.main(["import", "nsys", "a", "b"]) == 2
    assert "nsys: expected one file" in capsys.readouterr().err
