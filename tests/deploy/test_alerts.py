"""The sample alerts are rules that Prometheus takes, and fire for what they are named after."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy import programs
from tests.deploy.dashboards import GRAFANA

pytestmark = pytest.mark.backends

HERE = Path(__file__).resolve().parent
ALERTS = GRAFANA / "alerts.yaml"


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(part) for part in (programs.promtool(), *arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_promtool_takes_the_rules() -> None:
    """They are valid, with no rule twice."""
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", ALERTS)

    assert (done.returncode, done.stderr) == (0, "")
    assert "13 rules found" in done.stdout


def test_they_fire_for_that_and_for_nothing_else(tmp_path: Path) -> None:
    """Each of them is tried with series that it is for, and with some that look alike."""
    shutil.copy(ALERTS, tmp_path)
    shutil.copy(HERE / "alerts_test.yaml", tmp_path)

    done = promtool("test", "rules", tmp_path / "alerts_test.yaml")

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_rule_that_does_not_fire_is_found(tmp_path: Path) -> None:
    """The test above can fail."""
    text = ALERTS.read_text(encoding="utf-8")
    assert "> 60" in text
    (tmp_path / "alerts.yaml").write_text(text.replace("> 60", "> 600"), encoding="utf-8")
    shutil.copy(HERE / "alerts_test.yaml", tmp_path)

    done = promtool("test", "rules", tmp_path / "alerts_test.yaml")

    assert done.returncode != 0
    assert "GpuCallHangs" in done.stdout + done.stderr


def test_every_alert_is_tried() -> None:
    """No rule is without a case."""
    document = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
    names = {rule["alert"] for group in document["groups"] for rule in group["rules"]}
    tried = (HERE / "alerts_test.yaml").read_text(encoding="utf-8")

    assert names == set(re.findall(r"\b(?:Gpu|OtelGpu)\w+", tried)) & names
    assert len(names) == 13
