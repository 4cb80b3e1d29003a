"""The report as text: in the order of a reader's questions, and safe to print."""

import io

import pytest
from rich.console import Console

from otel_gpu.enrich.thread_times import NO_WAIT
from otel_gpu.explain.explainer import Explainer
from otel_gpu.report.collector import Collector
from otel_gpu.report.render.text.document import write_text
from otel_gpu.wire.frames import Frame
from tests.activities import SECOND, call_stack, calls, capture, counters, image, probes, snapshot
from tests.unit.report.samples import (
    BLOCKED_IN_GAP,
    HOG,
    MS,
    RUN_QUEUE_IN_GAP,
    FakeExplainer,
    feeding,
    incident,
    preempted,
    times,
    with_stacks,
)

TRAINER, SERVER = image(42, 1), image(77, 1, name="server")
EVIL = "x\x1b[2J\x9b1m\n\u202e"


def text_of(explainer, *activities, width=160, **options):
    collector = Collector(explainer)
    for activity in (capture(), *activities):
        collector.observe(activity)
    printed = io.StringIO()
    console = Console(file=printed, width=width, highlight=False, markup=False, emoji=False)
    write_text(collector.finish("train.otelgpu"), console, **options)
    return printed.getvalue()


def section(text, title):
    """The lines of a section, without the table's padding."""
    lines = iter(text.splitlines())
    found = [line for line in lines if line.startswith(title) and "  " not in line]
    assert len(found) <= 1
    inside = text.splitlines()[text.splitlines().index(found[0]) + 1 :]
    end = inside.index("") if "" in inside else len(inside)
    return [line.rstrip().removeprefix("  ") for line in inside[:end]]


def training():
    chains = [preempted(TRAINER, SECOND + n * 100 * MS, f"c{n}") for n in range(3)]
    return FakeExplainer(late=chains, incidents=[incident(*chains)])


def test_sections_answer_questions_in_order():
    """What bounds it, what went wrong, when, where did the time go, what is not known."""
    text = text_of(
        training(),
        snapshot(1, calls(TRAINER, "cudaMalloc", [1_000], size_bytes=5)),
        times(1, TRAINER, (*RUN_QUEUE_IN_GAP, 5, 2)),
    )

    assert [line for line in text.splitlines() if line and line[0] not in " ="] == [
        "train.otelgpu: 1 s from 2027-01-15 08:00:00.000000 UTC",
        "HIGH: trainer (42) lost 30 ms in 3 \N{MULTIPLICATION SIGN} slow cudaLaunchKernel",
        "cc1plus (900/901) took its CPU away",
        "Whose fault  cc1plus (900/901), another process",
        "What to do   Give it CPUs of its own.",
        "Verdict      unknown (starved 100 %)",
        "Where the time went",
        "Verdict",
        "Incidents, the worst first: 30 ms lost in all",
        "The worst moment",
        "Calls",
        "Device memory",
        "Off the CPU",
        "Who kept them waiting",
        "Over time",
        "Losses",
        "Not known",
    ]


def test_a_verdict_comes_with_its_numbers():
    """A word alone is an opinion: the shares stand beside it, and above it where the time went."""
    text = text_of(training(), feeding(1, TRAINER))

    assert section(text, "Verdict") == [
        "trainer (42): cpu-starved (starved 60 %, gpu 25 %, cpu 15 %)"
    ]
    assert section(text, "Where the time went") == [
        "trainer (42): 1 s of launching threads",
        "  60 %   600 ms  waiting for a CPU",
        "  25 %   250 ms  waiting for the GPU",
        "  15 %   150 ms  its own work",
    ]


def test_a_program_that_always_waits_is_told_for_whom():
    """No call was slower than usual: there is no effect to be told of, and an incident."""
    rows = feeding(1, TRAINER)
    hog = NO_WAIT._replace(api=1, who=HOG)
    rows = rows._replace(
        times=tuple(one._replace(ended_ns=one.time_ns, wait=hog) for one in rows.times)
    )

    text = text_of(Explainer(), rows)

    assert section(text, "Where the time went")[1:3] == [
        "  60 %   600 ms  waiting for a CPU",
        "  60 %   600 ms     cc1plus (900/901) had the CPU",
    ]
    high, why, cause, _, low = section(text, "Incidents")
    assert high.startswith(
        "1. HIGH: trainer (42) lost 600 ms, 60 % of the time of its launching threads, "
    )
    assert why == "   high because 60 % of the time of the launching threads"
    assert cause == (
        "    60 %   600 ms  It was ready to run, and cc1plus (900/901) had the CPU  run_queue"
    )
    assert low == "1 more, 150 ms together: its own work (--verbose shows each)"


def test_an_incident_is_told_with_its_worst_chain():
    """How bad, whose, when; what it was due to, hop by hop; what to do."""
    assert section(text_of(training()), "Incidents") == [
        (
            "1. HIGH: trainer (42) lost 30 ms in 3 \N{MULTIPLICATION SIGN} slow "
            "cudaLaunchKernel, +1.000 s to +1.210 s"
        ),
        "    70 %     7 ms  cc1plus (900/901) took its CPU away  preemption",
        "    10 %     1 ms  It waited for data from pt_data_worker (42/43)  ipc",
        "     5 %   500 µs     which cc1plus (900/901) kept from running  run_queue",
        "             6 ms  unexplained",
        (
            "   worst: slow cudaLaunchKernel of trainer (42), thread 42 trainer: 10 ms, "
            "10 ms more than usual"
        ),
        "   do: Give it CPUs of its own.",
    ]


def test_the_worst_moment_says_where_in_the_program_it_was():
    """
    The line of Python with the effect, the way from there into CUDA below it, and beside each
    wait where its thread was.
    """
    chain = with_stacks(preempted(TRAINER, SECOND))
    text = text_of(FakeExplainer(late=[chain], incidents=[incident(chain)]))

    assert section(text, "The worst moment") == [
        (
            "slow cudaLaunchKernel of trainer (42), thread 42 trainer, in train.py:74 "
            "fragmentation_pattern: 10 ms, 10 ms more than usual"
        ),
        "  cudaMalloc (libcudart.so.12)",
        "  at::native::empty_cuda (libtorch_cuda.so)",
        "  fragmentation_pattern (/app/train.py:74)",
        "  <module> (/app/train.py:102)",
        (
            "from 2027-01-15 08:00:01.000000 UTC; # in a run queue   = blocked   + in a call   "
            ". in a gap   * in a fork   ! counted   ? not seen"
        ),
        "         at µs          for µs",
        "            +0          10,000  |" + "-" * 50 + "|  slow cudaLaunchKernel",
        (
            "        +1,000           7,000  |     " + "#" * 35 + "          |  preemption, "
            "cc1plus (900/901) had the CPU"
        ),
        (
            "        +8,000           1,000  |" + " " * 40 + "=====     |  ipc, woken by "
            "pt_data_worker (42/43), at train.py:40 step, in pipe_read < vfs_read < ksys_read"
        ),
        (
            "        +8,000             500  |" + " " * 40 + "###       |  <- run_queue, "
            "cc1plus (900/901) had the CPU"
        ),
        "unexplained: 2 ms",
    ]
    assert (
        "     10 %     1 ms  It waited for data from pt_data_worker (42/43), in train.py:40 step  ipc"
        in text
    )


def test_a_deep_stack_does_not_fill_the_screen():
    """Both ends are shown, and how much is between them."""
    frames = tuple(Frame("cpython", f"f{number}", "/a.py", 1) for number in range(200))
    chain = preempted(TRAINER, SECOND)
    effect = chain.effect._replace(stack=call_stack(1, frames))
    text = text_of(FakeExplainer(late=[chain._replace(effect=effect)]))

    lines = section(text, "The worst moment")[1:13]
    assert lines[6:9] == [
        "  f6 (/a.py:1)",
        "  … 189 frames left out …",
        "  f196 (/a.py:1)",
    ]


def test_the_worst_moment_is_drawn_to_the_microsecond():
    """Offsets count from the start of the effect, and the drawing is to scale."""
    assert section(text_of(training()), "The worst moment") == [
        "slow cudaLaunchKernel of trainer (42), thread 42 trainer: 10 ms, 10 ms more than usual",
        (
            "from 2027-01-15 08:00:01.000000 UTC; # in a run queue   = blocked   + in a call   "
            ". in a gap   * in a fork   ! counted   ? not seen"
        ),
        "         at µs          for µs",
        f"            +0          10,000  |{'-' * 50}|  slow cudaLaunchKernel",
        (
            f"        +1,000           7,000  |{' ' * 5}{'#' * 35}{' ' * 10}|  preemption, "
            "cc1plus (900/901) had the CPU"
        ),
        (
            f"        +8,000           1,000  |{' ' * 40}{'=' * 5}{' ' * 5}|  ipc, woken by "
            "pt_data_worker (42/43), in pipe_read < vfs_read < ksys_read"
        ),
        (
            f"        +8,000             500  |{' ' * 40}{'#' * 3}{' ' * 7}|  <- run_queue, "
            "cc1plus (900/901) had the CPU"
        ),
        "unexplained: 2 ms",
    ]


def test_the_worst_moment_is_the_worst_by_severity_first():
    """A long wait for the GPU, which is no fault, does not hide what is one."""
    honest = preempted(TRAINER, SECOND, "gpu", duration_ns=900 * MS)._replace(severity="low")
    fault = preempted(TRAINER, 2 * SECOND, "hog")._replace(severity="high")

    text = text_of(FakeExplainer(late=[honest, fault]))

    assert section(text, "The worst moment")[1].startswith("from 2027-01-15 08:00:02.000000 UTC")


def test_tables_tell_calls_times_and_culprits():
    """Figures have units, errors are counted, a culprit of the own process is named as such."""
    text = text_of(
        training(),
        snapshot(
            1,
            calls(TRAINER, "cudaMalloc", [2_000] * 1_200, size_bytes=3 * 10**9),
            calls(TRAINER, "cudaFree", [1_000], size_bytes=10**9),
            calls(TRAINER, "cudaFree", [1_000], status=1),
        ),
        times(1, TRAINER, (*RUN_QUEUE_IN_GAP, 30, 3), (*BLOCKED_IN_GAP, 50, 2)),
    )

    def cells(title):
        return [" ".join(line.split()) for line in section(text, title)[1:]]

    assert cells("Calls") == [
        "cudaMalloc 1,200 0 2 µs 2 µs 2 µs 2.4 ms 3 GB",
        "cudaFree 2 1 1 µs 1 µs 1 µs 2 µs 1 GB",
    ]
    assert section(text, "Device memory") == [
        (
            "trainer (42): 1,200 allocations of 3 GB, 1 free of 1 GB; 2 GB more is held at the end "
            "than at the beginning"
        )
    ]
    assert cells("Off the CPU") == [
        "between calls blocked: ipc 50 ms 2 25 ms",
        "between calls waited for a CPU 30 ms 3 10 ms",
    ]
    assert cells("Who kept them waiting") == [
        "cc1plus (900/901) preemption 21 ms 3",
        "pt_data_worker (42/43) (its own) ipc 3 ms 3",
        "cc1plus (900/901) run_queue 1.5 ms 3",
    ]


def test_slots_have_phases():
    """A reader sees when it was bad without reading figures."""
    lost = preempted(TRAINER, 2 * SECOND, duration_ns=400 * MS)
    text = text_of(
        FakeExplainer(late=[lost]),
        snapshot(1, calls(TRAINER, "cudaLaunchKernel", [4_000] * 500)),
        snapshot(2, calls(TRAINER, "cudaMalloc", [10 * MS] * 50)),
        snapshot(3),
        snapshot(4, calls(TRAINER, "cudaStreamSynchronize", [600 * MS])),
        snapshot(5),
    )

    rows = [" ".join(line.split()) for line in section(text, "Over time")]
    assert rows == [
        "from calls/s mean call alloc+free/s mean run queue lost phase",
        "+0 s 500 4 µs 0 steady",
        "+1 s 50 10 ms 50 10 ms allocating 50 %",
        "+2 s 0 0 400 ms #################### stalled 40 %",
        "+3 s 1 600 ms 0 waiting for the GPU 60 %",
        "+4 s 0 0 no calls",
    ]


def test_each_process_has_its_part():
    """With --per-process nothing of one process stands among figures of another."""
    mine, foreign = preempted(TRAINER, SECOND, "a"), preempted(SERVER, SECOND, "b")
    explainer = FakeExplainer(
        late=[mine, foreign],
        incidents=[incident(mine, name="i1"), incident(foreign, name="i2")],
    )
    text = text_of(
        explainer,
        snapshot(1, calls(TRAINER, "cudaMalloc", [1_000]), calls(SERVER, "cudaFree", [1_000])),
        per_process=True,
    )

    first, second = text.split("\n== ")[1:]
    assert first.startswith("trainer (42)\n")
    assert second.startswith("server (77)\n")
    assert "cudaMalloc" in first
    assert "server" not in first
    assert "cudaMalloc" not in second
    assert "trainer" not in second
    assert text.count("Losses") == 1


def test_a_quiet_capture_says_so():
    """No incident is a result, and so is nothing lost."""
    text = text_of(FakeExplainer(), snapshot(1, calls(TRAINER, "cudaFree", [1_000])))

    assert section(text, "Incidents") == [
        (
            "None: no call and no gap was far slower than usual, hung or failed, and nothing on the host "
            "took much of the time."
        )
    ]
    assert section(text, "Losses") == ["nothing was lost"]
    assert section(text, "Verdict") == ["trainer (42): unknown"]


def test_an_empty_capture_says_so():
    """Probing nothing is not the same as nothing being wrong."""
    text = text_of(FakeExplainer())

    assert section(text, "Verdict") == ["No CUDA call in this window."]
    assert "No CUDA call was counted." in text


@pytest.mark.parametrize("per_process", [False, True])
def test_names_cannot_command_the_terminal(per_process):
    """Processes, threads, kernel functions, libraries: all may carry escape sequences."""
    evil = image(42, 1, name=EVIL)
    chain = preempted(evil, SECOND)
    culprit = chain.causes[0].culprit._replace(comm=EVIL)
    interval = (
        chain.causes[1]
        .evidence[0]
        ._replace(reason=EVIL, functions=(EVIL,), waker=culprit, culprit=culprit)
    )
    causes = (
        chain.causes[0]._replace(culprit=culprit),
        chain.causes[1]._replace(kind=EVIL, culprit=culprit, evidence=(interval,)),
    )
    effect = chain.effect._replace(api=EVIL, comm=EVIL, kind=EVIL)
    chain = chain._replace(causes=causes, effect=effect)
    failing = probes(1, EVIL, 1, 2)
    failing.info["failed"] = ["a"]
    explainer = FakeExplainer(
        late=[chain],
        incidents=[incident(chain, severity=EVIL, advice=(EVIL,))],
        given_up={EVIL: 1},
    )

    text = text_of(
        explainer,
        snapshot(1, calls(evil, "cudaFree", [1_000], size_bytes=1)),
        times(1, evil, (2, 0, EVIL, 5, 1)),
        failing,
        counters(1, **{f"lost_{EVIL}": 1}),
        per_process=per_process,
    )

    assert {c for c in text if not c.isprintable()} == {"\n"}
    assert text.count("x\\x1b[2J\\x9b1m\\n\\u202e") > 10


def test_a_narrow_terminal_tears_no_drawing_apart():
    """A waterfall that is folded by us is none; the terminal may fold it."""
    lines = section(text_of(training(), width=60), "The worst moment")

    assert len(lines) == 8


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_first_eight_rows_are_the_answer_at_any_width(width):
    """What happened, where and what to do; figures and their units are whole."""
    chain = with_stacks(preempted(TRAINER, SECOND))
    text = text_of(FakeExplainer(late=[chain], incidents=[incident(chain)]), width=width)

    answer = text.split("\n\n")[0].splitlines()
    assert len(answer) <= 8
    assert all(len(line) <= width for line in answer)
    said = " ".join(" ".join(line.split()) for line in answer)
    for part in ("lost 10 ms", "cc1plus (900/901)", "train.py:74", "Give it CPUs of its own."):
        assert part in said


def test_low_incidents_are_one_row_unless_all_is_asked_for():
    """How many there were, what they lost together, and to what."""
    chains = [preempted(TRAINER, SECOND + n * 100 * MS, f"c{n}") for n in range(4)]
    worst, *others = (incident(chain, name=f"i{n}") for n, chain in enumerate(chains))
    low = [one._replace(severity="low") for one in others]
    explainer = FakeExplainer(late=chains, incidents=[worst, *low])

    *_, folded = section(text_of(explainer), "Incidents")
    numbered = section(text_of(explainer, is_verbose=True), "Incidents")

    assert folded == "3 more, 30 ms together: preempted (--verbose shows each)"
    assert [line[0] for line in numbered if line[0].isdigit()] == ["1", "2", "3", "4"]


def test_one_section_can_be_written_alone():
    """By the beginning of its title, in any case; an unknown one is refused with those there are."""
    assert text_of(training(), section="losses").splitlines() == [
        "",
        "Losses",
        "  nothing was lost",
    ]
    with pytest.raises(ValueError, match=r"no section 'x': this report has .*, Losses, Not known"):
        text_of(training(), section="x")
