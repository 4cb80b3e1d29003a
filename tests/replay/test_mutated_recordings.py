"""Recordings of real captures with some bytes changed: every verb gives an answer, or a clear error."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_gpu import cli
from otel_gpu.capture.recording import RecordingWriter, read_recording
from tests.scenarios.all_scenarios import SCENARIOS

CORPUS = sorted((Path(__file__).parents[1] / "corpus" / "recordings").glob("*.otelgpu"))
ORIGINALS = ("preemption", "lock", "memory-limit", "noisy-neighbour", "two-causes")
# What a checksum cannot tell from a real value, and arithmetic stumbles over.
NUMBERS = (0, 1, 255, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
# Which record, which of its 8-byte words behind kind and size, and the value there; by share, so
# that one strategy fits recordings and records of all sizes.
SHARES = st.floats(0, 1, exclude_max=True)
MUTATIONS = st.lists(st.tuples(SHARES, SHARES, st.sampled_from(NUMBERS)), min_size=1, max_size=40)


def mutate(records, mutations):
    changed = [bytearray(record) for record in records]
    for which, where, value in mutations:
        record = changed[int(which * len(changed))]
        words = len(record) // 8 - 1
        if words > 0:
            start = 8 + 8 * int(where * words)
            record[start : start + 8] = value.to_bytes(8, "little")
    return [bytes(record) for record in changed]


def verbs(recording, folder):
    path = str(recording)
    return (
        ["replay", path, "--otlp-file", str(folder / "spans.jsonl")],
        ["replay", path, "--store", str(folder / "store.db")],
        ["explain", path, "--json"],
        ["report", path, "--html", str(folder / "page.html")],
        ["parse", path],
    )


def check_all(recording, folder, capsys):
    for arguments in verbs(recording, folder):
        code = cli.main(arguments)
        output = capsys.readouterr()

        # 1 is for what the verb refuses, and then it says why.
        assert code == 0 or (code == 1 and "error:" in output.err), (arguments, output.err)
        if "--json" in arguments:
            json.loads(output.out)
    for line in (folder / "spans.jsonl").read_bytes().splitlines():
        json.loads(line)


@pytest.mark.parametrize("recording", CORPUS, ids=lambda path: path.stem)
def test_recordings_that_broke_a_verb_once(recording, tmp_path, capsys):
    check_all(recording, tmp_path, capsys)


@settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck))
@given(original=st.sampled_from(ORIGINALS), mutations=MUTATIONS)
def test_changed_numbers_break_no_verb(original, mutations, tmp_path_factory, capsys):
    folder = tmp_path_factory.mktemp("mutated")
    source = SCENARIOS[original].recording
    records = [record for batch in read_recording(source) for record in batch]
    with RecordingWriter(folder / "mutated.otelgpu") as writer:
        writer.write(mutate(records, mutations))

    check_all(folder / "mutated.otelgpu", folder, capsys)
