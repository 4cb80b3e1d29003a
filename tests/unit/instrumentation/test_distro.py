"""``opentelemetry-instrument`` with nothing but environment variables, round a program that knows nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workloads.instrumented.train import BATCHES, SLOW_S, WAIT_S

FOLDER = Path(__file__).parents[2] / "workloads" / "instrumented"
INSTRUMENT = Path(sys.executable).parent / "opentelemetry-instrument"


def run(*, instrumented=True, **variables):
    """Run the loop, and return what it prints and the documents of the console exporters."""
    command = [INSTRUMENT] if instrumented else []
    done = subprocess.run(
        [*command, sys.executable, FOLDER / "train.py"],
        env={
            "PATH": os.environ["PATH"],
            "OTEL_TRACES_EXPORTER": "console",
            "OTEL_METRICS_EXPORTER": "console",
            "RANK": "3",
            "WORLD_SIZE": "8",
            **variables,
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    first, _, rest = done.stdout.partition("\n")
    return first, list(documents(rest)), done.stderr


def documents(text):
    decoder, at = json.JSONDecoder(), 0
    while at < len(text.rstrip()):
        found, at = decoder.raw_decode(text, at + len(text[at:]) - len(text[at:].lstrip()))
        yield found


def steps(found):
    return [one for one in found if one.get("name") == "gpu.training.step"]


def points(found, name):
    return [
        point
        for one in found
        for resource in one.get("resource_metrics", ())
        for scope in resource["scope_metrics"]
        for metric in scope["metrics"]
        if metric["name"] == name
        for point in metric["data"]["data_points"]
    ]


@pytest.fixture(scope="module")
def ran():
    return run()


def test_each_step_of_the_first_optimizer_is_a_span(ran):
    """From the end of one step to the end of the next; the other optimizer makes none."""
    _, found, _ = ran
    numbers = [one["attributes"]["gpu.training.step.number"] for one in steps(found)]

    assert numbers == list(range(1, BATCHES))
    waits = [one["attributes"]["gpu.training.step.loader_wait"] for one in steps(found)]
    assert min(waits) >= WAIT_S


def test_histograms_have_every_step_and_every_wait(ran):
    """The end of the loader is asked for as well."""
    _, found, _ = ran
    (durations,) = points(found, "gpu.training.step.duration")
    (waits,) = points(found, "gpu.training.loader.wait")

    assert (durations["count"], waits["count"]) == (BATCHES - 1, BATCHES + 1)
    assert durations["max"] >= SLOW_S
    assert waits["sum"] >= BATCHES * WAIT_S


def test_the_resource_says_rank_and_what_the_user_says(ran):
    """What the user sets goes before what we find."""
    _, found, _ = ran
    _, others, _ = run(
        OTEL_RESOURCE_ATTRIBUTES="otel_gpu.rank=7,team=vision", OTEL_SERVICE_NAME="mine"
    )
    resource, other = (one[0]["resource"]["attributes"] for one in (steps(found), steps(others)))

    assert (resource["otel_gpu.rank"], resource["otel_gpu.world_size"]) == (3, 8)
    assert (other["otel_gpu.rank"], other["team"], other["service.name"]) == ("7", "vision", "mine")


def test_a_program_without_instrumentation_imports_nothing_of_it():
    """An installed distribution costs nothing where it is not asked for."""
    assert run(instrumented=False) == ("False", [], "")


def test_what_is_disabled_by_the_user_stays_off():
    """PyTorch alone, or all of it."""
    _, found, _ = run(OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="otel_gpu_torch")
    assert steps(found) == []
    _, found, _ = run(OTEL_SDK_DISABLED="true")
    assert found == []


# Time passes where the program sleeps, and nowhere else: on a busy machine any step may be slow.
TIMED = """
import sys, time
sys.path.insert(0, sys.argv[1])
now_ns = time.time_ns()
def sleep(time_s):
    global now_ns
    now_ns += round(time_s * 1_000_000_000)
time.sleep, time.time_ns, time.monotonic_ns = sleep, lambda: now_ns, lambda: now_ns
import train
train.BATCHES, train.SLOW_BATCH, train.WORK_S, train.WAIT_S = 401, 300, 0.005, 0
train.main()
"""


def test_steps_are_spans_at_a_bounded_rate_and_slow_ones_always():
    """50 at once, 10 in a second; all are counted."""
    done = subprocess.run(
        [INSTRUMENT, sys.executable, "-c", TIMED, FOLDER],
        env={
            "PATH": os.environ["PATH"],
            "OTEL_TRACES_EXPORTER": "console",
            "OTEL_METRICS_EXPORTER": "console",
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found = list(documents(done.stdout.partition("\n")[2]))
    numbers = [one["attributes"]["gpu.training.step.number"] for one in steps(found)]
    lasted_s = 399 * 0.005 + SLOW_S

    assert numbers[:50] == list(range(1, 51))
    assert 300 in numbers
    assert len(numbers) == pytest.approx(50 + 10 * lasted_s + 1, abs=2)
    assert points(found, "gpu.training.step.duration")[0]["count"] == 400


def test_without_anybody_who_takes_the_telemetry_the_program_ends_well():
    """Its own exit code and output are its own."""
    first, found, _ = run(
        OTEL_TRACES_EXPORTER="otlp",
        OTEL_METRICS_EXPORTER="otlp",
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        OTEL_EXPORTER_OTLP_TIMEOUT="1",
    )

    assert (first, found) == ("True", [])
