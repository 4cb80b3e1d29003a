"""The screen: what fits a terminal, and that names stay names."""

import io
import re
from collections import Counter
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from otel_gpu import pipeline, wire
from otel_gpu.cli.sources import RecordingSource
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.enrich.identity.identities import Program, Who
from otel_gpu.explain.chains import Cause, Culprit, Incident
from otel_gpu.explain.settings import Settings
from otel_gpu.report.document import TimeNode, Where
from otel_gpu.report.render.top.bars import draw_bar, draw_legend
from otel_gpu.report.render.top.call_table import SORTS
from otel_gpu.report.render.top.columns import TopColumn, draw_columns
from otel_gpu.report.render.top.screen import Controls, draw_screen, key_of
from otel_gpu.report.top.model import TopModel
from otel_gpu.report.top.open_calls import OpenCallRow
from otel_gpu.report.top.screen import AgentUse, IncidentLine
from otel_gpu.wire.frames import Frame, FrameType
from tests.activities import (
    SECOND,
    calls,
    capture,
    counters,
    image,
    lines_at,
    open_call,
    snapshot,
    thread_time,
    times,
)
from tests.unit.cli.commands import starved
from tests.unit.report.samples import preempted

MS = 1_000_000
SIZES = [(80, 24), (120, 40), (40, 20)]
RECORDING = resources.files("otel_gpu.demo").joinpath("recordings", "two-causes.otelgpu")
HOSTILE = "\x1b[2J[bold red]evil[/]\x07\r\n\u202egnp.exe"


def recorded():
    return played(Path(str(RECORDING)))


def played(path):
    board = TopModel(Settings(), 200 * MS)
    recording = RecordingSource(path)
    pipeline.process(recording.batches(), Enricher(), [board.observe], Counter())
    board.close()
    return board.view()


def incident_of(process, *, advice="It is so. Do this."):
    chain = preempted(process, SECOND)
    return Incident("i", "high", 0, 0, 7 * MS, chain.causes, 0, (advice,), (chain,), 1)


def crowded(name="trainer"):
    """Many processes, calls, incidents and open calls, all of one name."""
    images = [
        Program(pid, pid * SECOND, name[:15], 0, {"service.name": name}) for pid in range(100, 130)
    ]
    board = TopModel(Settings(), 2 * SECOND)
    for activity in (
        capture(),
        counters(0.0),
        snapshot(
            5.0,
            *(calls(one, "cudaLaunchKernel", [2_000] * one.pid) for one in images),
            *(calls(one, "cudaMemcpy", [9_000], size_bytes=10**9, status=2) for one in images),
        ),
        times(
            5.0,
            *(thread_time(one, wire.STATE_RUN_QUEUE, wire.CONTEXT_GAP, SECOND) for one in images),
        ),
        counters(5.0, lost_ring_full=7, lost_no_entry=1),
        *(open_call(one, "cudaDeviceSynchronize", SECOND, 5 * SECOND, comm=name) for one in images),
    ):
        board.observe(activity)
    view = board.view()
    lines = tuple(IncidentLine(incident_of(one, advice=name), True) for one in images)
    return view._replace(incidents=lines, host=name, losses={name: 3})


def drawn(view, controls=Controls(), *, width=80, height=24, source="train.otelgpu"):  # noqa: B008 -- immutable
    return [
        line.plain
        for line in draw_screen(view, controls, source=source, width=width, height=height)
    ]


def test_calls_that_do_not_return_are_shown_with_their_line():
    """Of one that began before the capture the age is a lower bound."""
    view = TopModel(Settings(), 2 * SECOND).view()
    place = Frame(FrameType.PYTHON, "step", "/app/train.py", 31)
    seen = OpenCallRow(image(), "cudaMalloc", 43, "worker", 12 * SECOND)
    early = seen._replace(began_before_capture=True, place=place)

    lines = drawn(view._replace(open_calls=(seen, early)), width=120)

    assert "    12 s  cudaMalloc in trainer (42), thread 43 worker" in lines
    assert (
        "  ≥ 12 s  cudaMalloc in trainer (42) at train.py:31 step, thread 43 worker, "
        "began before the capture"
    ) in lines
    assert "No CUDA call was seen yet." not in lines


def test_a_capture_on_a_common_terminal(tmp_path):
    """
    Header, verdict, incidents with culprit and advice, calls: every cell of it.

    2,001 launches in two seconds took 168 ms, 160 of them the slowest one. The feeder ran
    150 ms, waited 150 ms for a CPU and 200 ms for its worker.
    """
    view = played(starved.write(tmp_path / "train.otelgpu"))

    assert drawn(view, height=None) == [
        "otel-gpu top  train.otelgpu on gpu-node-7  6 s captured  2025-10-09 08:53:26 UTC",
        "records lost: no_entry 2  agent: not known",
        "",
        "process          bound now  since start  feeders' time         most of it",
        "train.py (4242)  mixed      mixed        AAAAHHRRRRRRCCCCCCCC  ipc 40 %",
        "A api  H host  R run_queue  C ipc",
        "",
        "  40 %  ipc  data from others",
        "  30 %  run_queue  waiting for a CPU",
        "  20 %  api  inside CUDA calls",
        "",
        "incidents  2 forming, 0 over",
        "HIGH   220 ms lost now  slow gap before cudaMemcpy in train.py (4242)",
        "       <- ipc 91 % by pt_data_worker (4250)  Give the process CPUs of its own (…",
        "HIGH   160 ms lost now  slow cudaLaunchKernel in train.py (4242)",
        "       <- preemption 94 % by cc1plus (900/901)  Give the process CPUs of its ow…",
        "",
        "                  ------------------ last 2 s -------------------   since start ",
        "call              calls/s  time      p50      p99     max  errors  calls  errors",
        "cudaLaunchKernel    1,000   8 %  4.16 µs  4.16 µs  160 ms       0  2,001       0",
    ]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_screen_fills_its_terminal_and_no_more(width, height):
    """As many lines as it has, none wider; the calls and the keys are always on it."""
    for view in (recorded(), crowded()):
        lines = drawn(view, Controls(has_keys=True), width=width, height=height)

        assert len(lines) == height
        assert max(map(cell_len, lines)) <= width
        assert any(line.startswith("cudaLaunchKernel") for line in lines)
        assert lines[-1].startswith("q quit  p pause")


@pytest.mark.parametrize("height", range(20, 61))
def test_calls_are_on_a_screen_of_any_height(height):
    """However much there is to say about processes and incidents."""
    lines = drawn(crowded(), Controls(has_keys=True), height=height)

    assert any(line.startswith("cudaLaunchKernel") for line in lines)


def waited_for(line, comm):
    """A process line whose threads mostly waited for somebody, who worked."""
    worker = Who(77, 77, comm)
    work = TimeNode("host_work", 6 * SECOND, 0.6, worker, Where("decode", "/app/data.py", 7), 9)
    feeder = TimeNode("ipc", 7 * SECOND, 0.7, Who(77, 79, comm, function="_feed"), children=(work,))
    waits = TimeNode("ipc", 7 * SECOND, 0.7, children=(feeder,))
    busy = TimeNode(
        "run_queue", SECOND, 0.1, children=(TimeNode("run_queue", SECOND, 0.1, worker),)
    )
    rest = [TimeNode(state, SECOND, 0.1) for state in ("host", "gpu_wait")]
    tree = TimeNode("all", 10 * SECOND, 1.0, children=(waits, busy, *rest))
    return line._replace(time_tree=tree)


def leaves_of(view, *chosen, **size):
    named = Controls(*chosen)
    return [line for line in drawn(view, named, width=120, **size) if re.match(r" +\d+ %", line)]


def test_the_largest_leaves_of_the_time_tree_say_who_and_what():
    """Of one process three, each with who was waited for and what that one did."""
    view = crowded()
    view = view._replace(processes=(waited_for(view.processes[0], "loader"),), apis=())

    assert leaves_of(view, height=40) == [
        "  60 %  ipc  for loader (77/79), in _feed, loader (77), which was working on a CPU, in data.py:7 decode",
        "  10 %  run_queue  loader (77) had the CPU",
        "  10 %  host  its own work",
    ]
    assert len(leaves_of(view, height=24)) == 2
    assert leaves_of(view, height=16) == []


def test_each_of_several_processes_has_its_largest_leaf():
    """Those that run; one that is chosen has all the room."""
    view = crowded()
    lines = [waited_for(line, "loader") for line in view.processes[:4]]
    ended = lines.pop()._replace(has_ended=True)
    view = view._replace(processes=(*lines, ended), apis=())

    several = leaves_of(view, height=28)

    assert [line.partition(": ")[0] for line in several] == [
        f"  60 %  trainer ({line.process.pid})" for line in lines
    ]
    assert len(leaves_of(view, "time", key_of(lines[1].process), height=28)) == 3
    assert len(leaves_of(view._replace(processes=(ended,)), height=28)) == 3


def test_a_chronic_incident_is_said_to_be_one():
    """It has no effect to be named by; the process whose time it was is named."""
    view = crowded()
    cause = incident_of(view.processes[0].process).causes[0]
    first = view.processes[0].process
    chronic = Incident("c", "high", 0, 0, SECOND, (cause,), 0, (), (), 0, True, first)
    view = view._replace(incidents=(IncidentLine(chronic, True),))

    for chosen in (None, key_of(first)):
        (line,) = [x for x in drawn(view, Controls(chosen=chosen)) if x.startswith("HIGH")]
        assert line == f"HIGH   1 s lost now  chronic in trainer ({first.pid})"
    other = key_of(view.processes[1].process)
    assert not [x for x in drawn(view, Controls(chosen=other)) if x.startswith("HIGH")]


def test_an_incident_names_the_line_that_it_ends_at():
    """Of whoever is last in the chain, with what says so."""
    view = crowded()
    process = view.processes[0].process
    work = Cause("host_work", SECOND, 0.8, None, (), lines=lines_at(("decode", 12, 43)))
    cause = Cause("ipc", SECOND, 0.8, Culprit(77, 79, "loader"), (), (work,))
    chronic = Incident("c", "high", 0, 0, SECOND, (cause,), 0, (), (), 0, True, process)
    view = view._replace(incidents=(IncidentLine(chronic, True),))

    (line,) = [x for x in drawn(view, width=120) if x.startswith("       <-")]

    assert line == (
        "       <- ipc 80 % by loader (77/79), in pictures.py:12 decode: 100 % of 43 samples"
    )


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_time_budget_has_room_on_every_terminal(width, height):
    """A bar of ten letters and its legend say more than any column of numbers."""
    lines = drawn(crowded(), width=width, height=height)

    assert sum(line.startswith("trainer (") and "RRRRRRRRRR" in line for line in lines) >= 3
    assert "R run_queue" in lines


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_what_rich_writes_is_no_wider_either(width, height):
    """Rich folds and pads by its own rules; they change nothing here."""
    file = io.StringIO()
    console = Console(file=file, width=width, height=height, color_system=None)

    for line in draw_screen(crowded(), Controls(), source="x", width=width, height=height):
        console.print(line)

    written = file.getvalue().splitlines()
    assert len(written) == height
    assert max(map(cell_len, written)) <= width


def test_columns_go_and_are_not_cut():
    """On a narrow terminal, rates and the 99th percentile are left, and whole."""
    titles = {
        width: next(
            line.split()
            for line in drawn(crowded(), width=width, height=None)
            if line.startswith("call ")
        )
        for width in (160, 40)
    }

    assert titles[160] == [
        *("call", "process", "calls/s", "time", "p50", "p99", "max", "errors", "bytes/s"),
        *("calls", "p50", "p99", "max", "errors", "bytes"),
    ]
    assert titles[40] == ["call", "calls/s", "time", "p99"]


@pytest.mark.parametrize(("width", "height"), [*SIZES, (160, None)])
def test_hostile_names_stay_names(width, height):
    """No control character and no markup of a traced program is obeyed."""
    view = crowded(HOSTILE)
    view = view._replace(processes=tuple(waited_for(one, HOSTILE) for one in view.processes))

    lines = draw_screen(view, Controls(), source=HOSTILE, width=width, height=height)

    assert all(line.plain.isprintable() for line in lines)
    assert any("[bold red]" in line.plain for line in lines)
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system="standard")
    for line in lines:
        console.print(line)
    assert "\x1b[2J" not in file.getvalue()
    assert "\x07" not in file.getvalue()


@settings(deadline=None, max_examples=30)
@given(st.text(max_size=60), st.integers(min_value=1, max_value=200), st.integers(1, 60))
def test_no_name_and_no_size_breaks_the_screen(name, width, height):
    """Wide characters, none at all, a terminal of one cell."""
    lines = drawn(crowded(name), width=width, height=height, source=name)

    assert len(lines) == height
    assert max(map(cell_len, lines)) <= width
    assert all(line.isprintable() for line in lines)


def test_a_chosen_process_is_all_that_is_told_of():
    """Its line is marked and seen however many there are; calls and incidents are its own."""
    view = crowded()
    last = view.processes[-1].process

    lines = drawn(view, Controls(chosen=key_of(last)), width=120, height=40)

    assert any(line.startswith(f"> trainer ({last.pid})") for line in lines)
    assert "incidents  1 forming, 0 over" in lines
    assert "calls that do not return: 1" in lines
    assert sum(line.startswith("cuda") for line in lines) == 2


def test_sorting_puts_the_largest_first():
    """Each way to sort is a column."""
    view = crowded()

    def first(sort):
        lines = drawn(view, Controls(sort=sort), width=160, height=60)
        at = next(number for number, line in enumerate(lines) if line.startswith("call "))
        return lines[at + 1].split()[:3]

    assert list(SORTS) == ["time", "calls", "p99", "max", "errors", "bytes"]
    assert first("calls") == ["cudaLaunchKernel", "trainer", "(129)"]
    assert [first(sort)[0] for sort in ("p99", "max", "errors", "bytes")] == ["cudaMemcpy"] * 4


def test_losses_and_states_are_said():
    """What was lost, that the screen stands still, and what the agent itself said."""
    controls = Controls(is_paused=True, has_ended=True, has_keys=True, message="disk\nfull")
    view = crowded()._replace(losses={"ring_full": 7, "no_entry": 1}, left_out=5)
    view = view._replace(agent=AgentUse(0.125, None))

    lines = drawn(view, controls, width=120)

    assert "  PAUSED  ENDED  " in lines[0]
    assert lines[1] == (
        "records lost: ring_full 7, no_entry 1  agent: 12.5 % CPU  no room for 5 figures"
    )
    assert lines[-2] == r"disk\nfull"


def test_nothing_yet_is_said():
    """An empty screen would leave open whether anything is watched."""
    board = TopModel(Settings(), SECOND)
    board.observe(capture())

    assert drawn(board.view(), height=None) == [
        "otel-gpu top  train.otelgpu on node1  0 ns captured  2027-01-15 08:00:00 UTC",
        "records lost: nothing  agent: not known",
        "",
        "No CUDA call was seen yet.",
        "",
    ]


def test_a_bar_adds_up():
    """As many letters as there is room for, in proportion, whatever is rounded."""
    budget = {"gpu_wait": 500, "host": 333, "run_queue": 166, "io": 1}

    assert draw_bar(budget, 12).plain == "WWWWWWHHHHRR"
    assert draw_bar({"lock": 1}, 3).plain == "LLL"
    assert draw_bar({"lock": 0}, 3).plain == ""
    assert draw_legend([budget]).plain == "W gpu_wait  H host  R run_queue  I io"


def test_a_table_keeps_its_first_column_whatever_happens():
    """A rate of nobody knows what says nothing."""
    columns = [
        TopColumn("call", 0, [Text("cudaLaunchKernel")], is_left=True),
        TopColumn("calls/s", 1, [Text("12")]),
        TopColumn("p50", 2, [Text("1 µs")]),
    ]

    assert [line.plain for line in draw_columns(columns, 26)] == [
        "call              calls/s",
        "cudaLaunchKernel       12",
    ]
    assert [line.plain for line in draw_columns(columns, 5)] == ["call", "cudaLaunchKernel"]
