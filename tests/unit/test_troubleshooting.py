"""docs/troubleshooting.md names every loss, and messages as they are."""

import re
from pathlib import Path

import pytest

from otel_gpu import cli, wire
from otel_gpu.capture.losses import AgentLoss
from otel_gpu.enrich.activities import CountersActivity, StatusActivity
from otel_gpu.export import semconv
from otel_gpu.state.agent_health import AgentReadings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md"
LOST = "counter_lost_"


def losses_section() -> str:
    text = PAGE.read_text(encoding="utf-8")
    return text.partition("## Something was lost\n")[2].partition("\n## ")[0]


def test_every_loss_is_there_with_what_to_do_and_no_other() -> None:
    """By the word of the summary; what is rejected has a row for all of its reasons."""
    counters = {name: 1 for name in wire.COUNTER_NAMES.values() if name.startswith(LOST)}
    readings = AgentReadings()
    readings.observe(CountersActivity(0, counters))
    readings.observe(StatusActivity(0, {"still_running": 1}))
    rows = re.findall(r"^\| (`.*?) \| (.+?) \| (.+?) \|$", losses_section(), re.MULTILINE)
    named = [
        re.findall(r"`(\w+|rejected_…|error_…|skipped_…)`", re.sub(r"\(.*?\)", "", row[0]))
        for row in rows
    ]

    assert sorted(word for words in named for word in words) == sorted(
        [
            *readings.losses({}),
            *AgentLoss,
            "rejected_…",
            "error_…",
            "skipped_…",
        ]
    )
    assert len(counters) >= 14


def test_reasons_that_the_metric_calls_otherwise_are_in_parentheses() -> None:
    """A reader may come from a dashboard, where the reason is the metric's."""
    otherwise = {
        (wire.COUNTER_NAMES[number].removeprefix(LOST), reason)
        for number, reason in semconv.REASON_VALUES.items()
        if wire.COUNTER_NAMES[number].startswith(LOST)
        and wire.COUNTER_NAMES[number] != LOST + reason
    }

    assert set(re.findall(r"`(\w+)` \(`(\w+)`\)", losses_section())) == otherwise
    assert otherwise


def test_a_wrong_key_is_answered_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown key in a file ends a run with exit code 2, and in these words."""
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text("spans:\n  moed: full\n", encoding="utf-8")

    assert cli.main(["doctor", "--config", "bad.yaml"]) == 2
    said = capsys.readouterr().err
    assert "unknown key spans.moed" in said
    assert f"```text\n{said}```" in PAGE.read_text(encoding="utf-8")


def test_an_endpoint_that_is_closed_is_answered_as_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Port 9 of this host takes no connection; what doctor says of it is on the page."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:9")

    cli.main(["doctor"])
    lines = capsys.readouterr().out.splitlines()

    (number,) = (n for n, line in enumerate(lines) if " endpoint " in line)
    shown = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert "Connection refused" in lines[number]
    for line in lines[number : number + 2]:
        assert " ".join(line.split()) in shown
