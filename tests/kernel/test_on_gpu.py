"""The run that is prepared for a machine with a GPU, with stand-ins: see docs/validation.md."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.agent import ROOT

pytestmark = pytest.mark.kernel
WAYS = {"nothing", "entries", "sites", "preload"}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each part has found."""
    folder = tmp_path_factory.mktemp("on_gpu")
    ended = subprocess.run(
        [sys.executable, "tools/on_gpu.py", "--stubs", "--seconds", "30"],
        cwd=ROOT,
        env=os.environ | {"OUT": str(folder)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    log = (folder / "on-gpu.log").read_text()
    assert ended.stdout == "".join(
        line for line in log.splitlines(keepends=True) if line[2:3] == ":"
    )
    found: dict[str, Any] = json.loads((folder / "on-gpu.json").read_text())["parts"]
    return found


def test_libraries_and_their_prologues_are_listed(parts: dict[str, Any]) -> None:
    """Of the runtime, the driver, NCCL and PyTorch's allocator: where each probe goes."""
    listed = parts["prologues"]["result"]

    assert {Path(path).name for path in listed} == {
        *("libcudart.so.12", "libcuda.so.1", "libnccl.so.2", "libc10.so"),
    }
    (driver,) = (sites for path, sites in listed.items() if path.endswith("/libcuda.so.1"))
    assert [(one["offset"], one["instruction"], one["class"]) for one in driver] == [
        (10, "je", "emulated")
    ]


def test_a_pair_of_probes_costs_most_at_the_entry(parts: dict[str, Any]) -> None:
    """There the comparison is single-stepped; the same of a block's report."""
    pairs = parts["pair_costs"]["result"]

    assert [(one["offset"], one["returns"]) for one in pairs] == [(10, True), (7, False)]
    for pair in pairs:
        assert pair["bare_ns"]["rounds"] >= 3
        assert pair["added_at_entry_ns"]["median"] > pair["added_at_site_ns"]["median"]


def test_steps_are_measured_each_way_in_each_round(parts: dict[str, Any]) -> None:
    """With nothing, probes at entries, at sites, and preloaded, each with its interval."""
    found = parts["decode_step"]["result"]

    assert found.keys() == {"command", *WAYS}
    for way in WAYS:
        times = found[way]["times_nothing"]
        assert times["low"] <= times["median"] <= times["high"]
        assert times["rounds"] >= 3
    assert found["nothing"]["added_ns"]["median"] == 0


def test_a_part_that_fails_or_has_no_time_costs_no_other(parts: dict[str, Any]) -> None:
    """Each has a result, or says why not."""
    assert [*parts] == [
        *("machine", "prologues", "pair_costs", "decode_step", "training_step", "check_gpu"),
    ]
    for part in parts.values():
        assert ("result" in part) != ("error" in part)
        assert part.get("error", "left out").startswith("left out")
    assert parts["machine"]["result"]["uses_stubs"] is True
