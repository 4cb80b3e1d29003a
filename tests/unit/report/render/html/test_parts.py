"""The parts of a page: what they say of the figures that they are given."""

import math
import re

import pytest

from otel_gpu.enrich.identity.identities import Who
from otel_gpu.report.document import (
    ApiTotals,
    Balance,
    OffCpu,
    TimeBucket,
    TimeNode,
    Where,
    processes_of,
)
from otel_gpu.report.render.fields import Cell, Field
from otel_gpu.report.render.html import tables
from otel_gpu.report.render.html.page import MOST_BALANCES
from otel_gpu.report.render.html.tables import HtmlTable
from tests.activities import SECOND, T0, image
from tests.unit.report.render.html.pages import Seen, part, report_named, text_of
from tests.unit.report.samples import MS, verdict

TRAINER, SERVER = image(42, 1), image(77, 1, name="server")
LAUNCHES = ApiTotals(TRAINER, "cudaLaunchKernel", "runtime", 1_200, 3, 4e3, 9e6, 1e7, 2_000_000, 0)


def call_table(rows, **named):
    return part("table", tables.table_of(tables.CALLS, rows, **named))


def off_cpu_table(rows, **named):
    return part("table", tables.table_of(tables.OFF_CPU, rows, **named))


def articles(markup):
    return re.findall("<article.*?</article>", markup, re.DOTALL)


def rows_of(markup):
    return [text_of(row) for row in re.findall("<tr>.*?</tr>", markup)]


def test_a_table_shows_figures_and_sorts_by_them():
    """A reader sees units, and the script sorts by the numbers behind them."""
    markup = call_table([LAUNCHES], with_process=False)

    assert rows_of(markup) == [
        "call calls errors p50 p99 max total bytes",
        "cudaLaunchKernel 1,200 3 4 µs 9 ms 10 ms 2 ms",
    ]
    assert Seen(markup).values_of("data-value") == [
        *("1200", "3", "4000", "9000000", "10000000", "2000000", "2000000", "0")
    ]
    assert "bad" in Seen(markup).values_of("class")


def test_a_percentile_that_is_not_known_is_empty():
    """And it is no number to sort by."""
    markup = call_table([LAUNCHES._replace(p50_ns=math.nan, p99_ns=math.nan)], with_process=False)

    assert rows_of(markup)[1] == "cudaLaunchKernel 1,200 3 10 ms 2 ms"
    assert "nan" not in markup


def test_the_process_stands_where_there_are_several():
    """Of one process, the column would say the same in every row."""
    (_, row) = rows_of(call_table([LAUNCHES], with_process=True))

    assert row.startswith("cudaLaunchKernel trainer (42) 1,200")


def test_a_table_says_what_it_leaves_out():
    """Silence would be taken for completeness."""
    rows = [[Cell("a")], [Cell("b")]]

    assert "more are not shown" not in part(
        "table", HtmlTable("t", [Field("x", Cell, is_text=True)], rows)
    )
    told = text_of(part("table", HtmlTable("t", [Field("x", Cell, is_text=True)], rows, 3)))
    assert told.endswith("3 more are not shown.")


@pytest.mark.parametrize(
    ("allocated", "freed", "told"),
    [
        (3 * 10**9, 10**9, "trainer (42): 2 GB more in use at the end"),
        (10**9, 3 * 10**9, "trainer (42): 2 GB less in use at the end"),
        (10**9, 10**9, "trainer (42): all that was allocated was freed"),
    ],
)
def test_a_balance_is_told(allocated, freed, told):
    """A leak is what is left when all is added up."""
    (card,) = articles(part("memory_part", [Balance(TRAINER, 3, allocated, 1, freed)], [], False))

    assert text_of(card).startswith(told)


def test_calls_that_allocate_have_their_own_table():
    """Others are not in it, and pinned host memory is told from the device's."""
    names = ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaLaunchKernel")
    apis = [LAUNCHES._replace(api=name) for name in names]

    listed = part("memory_part", [Balance(TRAINER, 1, 1, 1, 1)], apis, False)

    assert [row.split(" 1,200")[0] for row in rows_of(listed)[1:]] == [
        "cudaMalloc allocates on the device",
        "cudaFree frees on the device",
        "cudaHostAlloc allocates pinned host memory",
    ]


def test_the_largest_balances_come_first():
    """Where there are many processes, the one that leaks is not left out."""
    memory = [Balance(image(pid, 1), 1, pid, 0, 0) for pid in range(1, 100)]

    markup = part("memory_part", memory, [], True)

    assert text_of(articles(markup)[0]).startswith("trainer (99): 99 B more")
    assert len(articles(markup)) == MOST_BALANCES
    assert text_of(markup).endswith(f"{99 - MOST_BALANCES} more processes.")


def test_a_verdict_comes_with_its_numbers():
    """In words, and as shares."""
    report = report_named("x")._replace(
        processes=tuple(processes_of((TRAINER, SERVER), [verdict(TRAINER)])), apis=()
    )

    assert text_of(part("verdicts_part", report)) == (
        "trainer (42) cpu-starved Most of its time it was ready to run and had no CPU: another thread had "
        "it, or its CPU quota was used up. "
        "waiting for a CPU 60 % waiting for the GPU 25 % its own work on a CPU 15 % "
        "Watched, and no CUDA call seen: server (77)"
    )


def node(state, share, *children, **values):
    return TimeNode(state, round(share * SECOND), share, children=children, **values)


def where_part(tree, **named):
    judged = verdict(TRAINER)._replace(time_tree=tree)
    report = report_named("x")._replace(processes=tuple(processes_of((TRAINER,), [judged])))
    return part("where_part", report, **named)


def test_the_time_tree_is_a_list_of_lists():
    """Each row stands in the list of what it is a part of, with its time, share and place."""
    loader = Who(77, 79, "loader", "python load.py", unit="job.service", owner="ann")
    work = node("host_work", 0.5, who=loader, where=Where("decode", "/app/data.py", 7), samples=9)
    late = node("run_queue", 0.1, who=loader)
    tree = node(
        "all", 1.0, node("ipc", 0.6, node("ipc", 0.6, work, late, who=loader)), node("host", 0.4)
    )

    markup = where_part(tree)

    assert text_of(markup) == (
        "trainer (42): 1 s of launching threads "
        "60 % 600 ms data from others "
        "60 % 600 ms for loader (77/79), job.service "
        "command python load.py; unit job.service; owner ann "
        "50 % 500 ms which was working on a CPU, in data.py:7 decode "
        "10 % 100 ms which waited for a CPU "
        "40 % 400 ms its own work"
    )
    lists = re.sub("<(?!/?(?:ul|li)[ >])[^>]*>|[^<>]+(?=<)", "", markup).replace(
        ' class="causes"', ""
    )
    assert lists.replace("\n", "") == (
        "<ul><li><ul><li><ul><li></li><li></li></ul></li></ul></li><li></li></ul>"
    )


def test_who_runs_what_the_process_itself_runs_is_not_said_again():
    """A loader that was forked has its command."""
    fork = Who(77, 77, "loader", "trainer", owner="ann")
    tree = node("all", 1.0, node("ipc", 1.0, node("ipc", 1.0, who=fork)))

    assert text_of(where_part(tree)).endswith("for loader (77)")


def test_a_process_without_an_account_has_no_tree():
    """Then there is no section either."""
    assert where_part(None).strip() == ""


def test_a_chronic_incident_is_marked():
    """In its card, and in the row of one that has no card."""
    acute, _, chronic = report_named("x").incidents

    assert [
        "chronic" in text_of(part("incident_card", 1, one, T0)) for one in (acute, chronic)
    ] == [False, True]
    table = tables.incident_table((acute, chronic), 1, T0)
    assert [text_of(row[0].shown) for row in table.rows] == ["high", "high, chronic"]


@pytest.mark.parametrize(
    ("state", "context", "reason", "told"),
    [
        ("run_queue", "gap", "", "waited for a CPU 5 ms 2 2.5 ms between"),
        # A driver may sleep between two looks at the device.
        ("blocked", "synchronize", "sleep", "waited for the GPU (sleep) 5 ms"),
        ("blocked", "gap", "sleep", "slept 5 ms"),
        ("blocked", "other", "child_wait", "waited for data (child_wait) 5 ms"),
        ("blocked", "99", "<b>", "unexplained (<b>) 5 ms 2 2.5 ms 99"),
    ],
)
def test_a_wait_means_what_it_means_where_it_was(state, context, reason, told):
    """The same sleep is the program's between calls, and the driver's inside of one."""
    row = OffCpu(TRAINER, context, state, reason, 5 * MS, 2)

    assert rows_of(off_cpu_table([row], with_process=False))[1].startswith(told)


def slot(number, **values):
    given = dict.fromkeys(
        ("calls", "call_ns", "synchronize_ns", "allocate_calls", "allocate_ns", "run_queue_ns"), 0
    ) | {"lost_ns": 0}
    start_unix_ns = T0 + number * SECOND
    return TimeBucket(None, start_unix_ns, start_unix_ns + SECOND, **(given | values))


def test_charts_are_to_scale():
    """A share is drawn against the whole of the time, a rate against the largest."""
    slots = (slot(0, calls=100), slot(1, calls=50, lost_ns=SECOND // 4))
    report = report_named("x")._replace(time_buckets=slots, incidents=(), processes=())

    markup = part("time_part", report)

    bars = re.findall(r"<title>([^<]+)</title></rect>", markup)
    heights = re.findall(r' height="([\d.]+)"><title>', markup)
    assert dict(zip(bars, heights, strict=True)) == {
        "+0 s: steady": "10",
        "+1 s: stalled 25 %": "10",
        "+1 s: 25 %": "2.5",
        "+0 s: 100 per second": "10",
        "+1 s: 50 per second": "5",
    }
    assert "GPU wait" not in text_of(markup).split("The same in figures")[0]
    assert rows_of(markup)[1:] == ["+0 s 100 0 steady", "+1 s 50 0 250 ms stalled 25 %"]
