"""What can be said of collector-config without a Collector: order, names, addresses, versions."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.backends.otelcol import CONFIGS

HERE = Path(__file__).resolve().parent
BUILDER = HERE / "collector" / "builder.yaml"
# The names that components had before 2026; a file with one of them starts with a warning.
OLD_NAMES = {
    "otlp": "exporters",
    "otlphttp": "exporters",
    "loadbalancing": "exporters",
    "prometheusremotewrite": "exporters",
    "k8sattributes": "processors",
    "resourcedetection": "processors",
    "spanmetrics": "connectors",
    # Not renamed: its place is the exporter's sending_queue.
    "batch": "processors",
}


def config(name: str) -> dict[str, Any]:
    loaded = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def files() -> list[str]:
    return sorted(path.stem for path in CONFIGS.glob("*.yaml"))


@pytest.mark.parametrize("name", files())
def test_memory_is_limited_before_all_else(name: str) -> None:
    """A burst is refused by the first processor, in every pipeline."""
    for pipeline in config(name)["service"]["pipelines"].values():
        assert pipeline["processors"][0] == "memory_limiter"


@pytest.mark.parametrize("name", files())
def test_no_component_goes_by_an_old_name(name: str) -> None:
    """Components have the names of the pinned version, and batches are made in exporters."""
    document = config(name)
    for old, section in OLD_NAMES.items():
        assert old not in {key.partition("/")[0] for key in document.get(section, {})}


@pytest.mark.parametrize("name", files())
def test_nothing_listens_beyond_loopback_and_no_secret_is_written_down(name: str) -> None:
    """
    Addresses are loopback's unless the environment says otherwise; headers come from there only.
    """
    text = (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8")
    for key, value in re.findall(r"^\s*(endpoint|hostname|headers): *(\S.*)$", text, re.MULTILINE):
        if key == "headers":
            assert re.fullmatch(r"\$\{env:OTELCOL_\w+_HEADERS:-null}", value)
        else:
            plain = re.sub(r"\$\{env:\w+:-(.*?)}", r"\1", value)
            assert re.fullmatch(r"(http://)?(127\.0\.0\.1|localhost)(:\d+)?(/\S*)?", plain)


def test_the_collector_that_is_built_has_what_the_files_use_and_no_more() -> None:
    """
    builder.yaml lists the components of collector-config, so a dropped one is dropped there too.
    """
    used = {
        (section, key.partition("/")[0].replace("_", ""))
        for name in files()
        for section in ("receivers", "processors", "connectors", "exporters", "extensions")
        for key in config(name).get(section, {})
    }
    built = set()
    for section, modules in yaml.safe_load(BUILDER.read_text(encoding="utf-8")).items():
        if section in {"dist", "providers"}:
            continue
        for module in modules:
            name = module["gomod"].split(" ")[0].rpartition("/")[2]
            built.add((section, name.removesuffix(section.removesuffix("s"))))

    # Two modules have kept the name that their component had.
    kept = {("exporters", "otlp"): "otlpgrpc", ("processors", "k8sattributes"): "k8sattributes"}
    built = {(section, kept.get((section, name), name)) for section, name in built}
    assert used == built | {("extensions", "healthcheck")}


def test_the_collector_is_built_from_the_versions_that_are_listed() -> None:
    """The builder names each component's version, go.mod decides; they say the same."""
    required = dict(
        re.findall(r"^\t(\S+) (v\S+)$", (HERE / "collector" / "go.mod").read_text(), re.MULTILINE)
    )
    document = yaml.safe_load(BUILDER.read_text(encoding="utf-8"))
    listed = {
        tuple(module["gomod"].split())
        for section, modules in document.items()
        if section != "dist"
        for module in modules
    }

    assert len(listed) == 19
    for name, version in listed:
        assert required[name] == version
    assert document["dist"]["version"] == required["go.opentelemetry.io/collector/otelcol"][1:]
