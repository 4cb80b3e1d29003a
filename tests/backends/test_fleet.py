"""A fleet of 93 ranks in ClickHouse and Prometheus: docs/fleet.md, and what it is held to."""

from collections.abc import Iterator

import pytest

from tests.backends import fleet
from tests.backends.fleet_page import Stores, asked, filled, questions
from tests.deploy.dashboards import Question, filled_in
from tests.deploy.dashboards import questions as dashboard_questions
from tests.investigating import Example, missing

pytestmark = pytest.mark.backends

QUESTIONS = questions()
# There are readings a minute apart.
RATE_S = 120
OR_ZERO = " or on () vector(0)"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    with filled(tmp_path_factory.mktemp("fleet")) as stores:
        yield stores


def of(heading: str, kind: str) -> list[Example]:
    """The questions below a heading."""
    found = [one for one in QUESTIONS if (one.heading, one.kind) == (heading, kind)]
    assert found
    return found


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: f"{one.kind}: {one.heading}")
def test_the_answer_is_as_the_page_says(stores: Stores, question: Example) -> None:
    """What stands below each question of docs/fleet.md is all that is answered."""
    answered = stores.answer(question)

    assert question.promised.strip()
    assert not missing(question.promised, answered), answered
    assert len(question.promised.splitlines()) == len(answered.splitlines()), answered


def test_the_page_asks_in_both_languages() -> None:
    """Three views, nine questions in SQL and eight in PromQL."""
    kinds = [one.kind for one in QUESTIONS]

    assert len(asked()) - len(QUESTIONS) == 3
    assert (kinds.count("sql"), kinds.count("promql")) == (9, 8)


def test_sql_names_the_preempted_rank_of_64_and_its_culprit(stores: Stores) -> None:
    """And neither a rank that merely waits nor a job that is well is in the answer."""
    (who,) = of("Which rank comes last, and what does it cost?", "sql")
    why = of("Why does it come last?", "sql")[0]
    usual_ms = [20 + rank / 100 for rank in range(64) if rank != 37]
    lost_s = 600 * (sum(usual_ms) - 63 * 5) / 1000

    (late,) = (row for row in stores.clickhouse.query(who.text) if row["job"] == "pretrain")
    (cause,) = (row for row in stores.clickhouse.query(why.text) if row["job"] == "pretrain")

    assert late == {
        "job": "pretrain",
        "late_rank": 37,
        "its_node": "node-4",
        "its_wait_ms": 5.0,
        # Of 64 the lower of the two in the middle, or between them.
        "usual_wait_ms": pytest.approx(20.3, abs=0.011),
        "lost_s": round(lost_s),
    }
    assert (cause["late_rank"], cause["cause"], cause["culprit"]) == (37, "preemption", "hog")
    assert cause["its_node"] == "node-4"


def test_promql_names_the_preempted_rank_of_64_and_its_culprit(stores: Stores) -> None:
    """The same, from metrics alone."""
    (who,) = of("Which rank comes last, now?", "promql")
    (why,) = of("Why does it come last, now?", "promql")

    late = stores.prometheus.query(who.text, stores.end_unix_s + 1)
    causes = stores.prometheus.query(why.text, stores.end_unix_s + 1)

    (its,) = (one for one in late if one["metric"]["otel_gpu_job_name"] == "pretrain")
    assert (its["metric"]["gpu_nccl_rank"], its["metric"]["host_name"]) == ("37", "node-4")
    assert float(its["value"][1]) == pytest.approx(0.005)
    (cause,) = (one for one in causes if one["metric"]["otel_gpu_job_name"] == "pretrain")
    assert cause["metric"]["otel_gpu_culprit_comm"] == "hog"
    assert cause["metric"]["otel_gpu_cause_kind"] == "preemption"
    assert cause["metric"]["otel_gpu_rank"] == "37"


def test_the_exporter_made_the_tables(stores: Stores) -> None:
    """They are those of the Collector's exporter, beside our views, and of its types."""
    tables = {row["name"] for row in stores.clickhouse.query("SHOW TABLES FROM otel")}
    kinds = stores.clickhouse.query("DESCRIBE TABLE otel.otel_metrics_sum")

    metrics = {"gauge", "sum", "summary", "histogram", "exponential_histogram"}
    assert tables == (
        {"otel_traces", "otel_traces_trace_id_ts", "otel_traces_trace_id_ts_mv", "otel_logs"}
        | {f"otel_metrics_{kind}" for kind in metrics}
        | {"gpu_ranks", "gpu_waits", "gpu_stragglers"}
    )
    found = {row["name"]: row["type"] for row in kinds}
    assert found["Attributes"] == "Map(LowCardinality(String), String)"
    assert found["TimeUnix"] == "DateTime"


def test_no_collective_is_lost_on_the_way(stores: Stores) -> None:
    """What each rank called, and its bytes, are in both stores exactly."""
    wanted = {
        (job.name, rank): fleet.readings(job, rank)[1].called
        for job in fleet.JOBS
        for rank in range(job.ranks)
    }
    rows = stores.clickhouse.query(
        "SELECT ResourceAttributes['otel_gpu.job.name'] AS job, MetricName AS name,"
        " toUInt32(Attributes['gpu.nccl.rank']) AS rank, max(Value) AS value, count() AS points"
        " FROM otel.otel_metrics_sum WHERE MetricName IN ('gpu.nccl.collectives', 'gpu.nccl.bytes')"
        " GROUP BY job, name, rank"
    )
    of_name = {
        name: {(row["job"], row["rank"]): row["value"] for row in rows if row["name"] == name}
        for name in ("gpu.nccl.collectives", "gpu.nccl.bytes")
    }
    series = stores.prometheus.query("gpu_nccl_collectives_total", stores.end_unix_s + 1)

    assert of_name["gpu.nccl.collectives"] == wanted
    assert of_name["gpu.nccl.bytes"] == {key: n * 2 * fleet.ELEMENTS for key, n in wanted.items()}
    assert {row["points"] for row in rows} == {2}
    assert sum(float(one["value"][1]) for one in series) == sum(wanted.values())


@pytest.mark.parametrize(
    "question",
    [one for one in dashboard_questions("prometheus") if one.dashboard == "ranks"],
    ids=str,
)
def test_the_dashboard_of_ranks_has_data(stores: Stores, question: Question) -> None:
    """Each panel asks for something that is there; there were no errors, which is shown as 0."""
    asked = filled_in(question.target["expr"], RATE_S, RATE_S)
    found = stores.prometheus.query(asked.replace(OR_ZERO, ""), stores.end_unix_s + 1)

    if question.panel == "Errors of NCCL":
        assert found == []
        found = stores.prometheus.query(asked, stores.end_unix_s + 1)
        assert [series["value"][1] for series in found] == ["0"]
    else:
        assert [series for series in found if series["value"][1] != "NaN"]


def test_the_dashboard_lets_one_choose_a_communicator(stores: Stores) -> None:
    """Of those that are there; and what is chosen is all that is shown."""
    found = stores.prometheus.get(
        "/api/v1/label/gpu_nccl_comm/values",
        **{"match[]": 'gpu_nccl_sequence{gpu_nccl_state="called"}'},
    )
    wanted = f"{fleet.PREEMPTED.comm:016x}"
    (question,) = (
        one for one in dashboard_questions("prometheus") if one.panel == "Who waits least"
    )
    asked = filled_in(question.target["expr"], RATE_S, RATE_S, comm=wanted)
    series = stores.prometheus.query(asked, stores.end_unix_s + 1)

    assert sorted(found["data"]) == sorted(f"{job.comm:016x}" for job in fleet.JOBS)
    assert [one["metric"] for one in sorted(series, key=lambda one: float(one["value"][1]))] == [
        {"otel_gpu_job_name": "pretrain", "gpu_nccl_rank": rank} for rank in ("37", "0", "1")
    ]
