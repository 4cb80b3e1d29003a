import os

import pytest

from otel_gpu.errors import ConfigError
from otel_gpu.export.otlp import environment
from otel_gpu.export.otlp.environment import (
    exporter_names,
    otlp_compression,
    otlp_protocol,
    setting,
    standing_in,
)

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4317"}


def test_an_empty_variable_is_not_set():
    """As the specification has it, an empty value counts as none."""
    assert setting({"A": " ", "B": "b"}, "A", "B") == ("B", "b")
    assert setting({"A": ""}, "A", "B") == ("B", "")


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({}, ()),
        (ENDPOINT, ("otlp",)),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4317"}, ("otlp",)),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://localhost:4317"}, ()),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, ()),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, ("otlp",)),
        ({"OTEL_TRACES_EXPORTER": "console, otlp,console"}, ("console", "otlp")),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "True"}, ()),
    ],
)
def test_exporters_are_named_or_follow_from_an_endpoint(environ, names):
    """An endpoint is enough to export; a name says what else, ``none`` says nothing."""
    assert exporter_names(environ, "TRACES") == names


def test_none_stands_alone():
    """``none`` beside another exporter is a contradiction."""
    with pytest.raises(ConfigError, match="none cannot be combined"):
        exporter_names({"OTEL_TRACES_EXPORTER": "none,otlp"}, "TRACES")


def test_the_signals_own_protocol_wins():
    """The variable for traces goes before the general one; gRPC is the default."""
    assert otlp_protocol({}, "TRACES") == "grpc"
    environ = {
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    }
    assert otlp_protocol(environ, "TRACES") == "http/protobuf"
    assert otlp_protocol(environ, "METRICS") == "grpc"


@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
        {"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"},
        {"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "0"},
        {
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4318",
        },
    ],
)
def test_settings_that_cannot_work_are_refused(environ):
    """A mistake is told at the start, with what to write instead."""
    with pytest.raises(ConfigError) as caught:
        otlp_protocol(environ, "TRACES")

    assert caught.value.hint


def test_a_timeout_in_milliseconds_is_warned_about_once(caplog, monkeypatch):
    """Python's exporters count seconds: 10000 is most likely a mistake."""
    monkeypatch.setattr(environment, "_warned_timeouts", set())

    for signal in ("TRACES", "METRICS", "TRACES"):
        otlp_protocol({"OTEL_EXPORTER_OTLP_TIMEOUT": "10000"}, signal)

    assert caplog.text.count("is 10000 seconds") == 1


def test_compression_is_checked_for_the_protocol():
    """GRPC knows no deflate, HTTP does."""
    deflate = {"OTEL_EXPORTER_OTLP_COMPRESSION": "Deflate"}

    assert otlp_compression({}, "TRACES") == "none"
    with pytest.raises(ConfigError, match="deflate"):
        otlp_compression(deflate, "TRACES")
    http = {**deflate, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    assert otlp_compression(http, "TRACES") == "deflate"


def test_another_environment_stands_in_and_leaves(monkeypatch):
    """The process's variables are back afterwards, whatever happened."""
    monkeypatch.setenv("KEPT", "yes")

    inside = {}

    def fail_inside() -> None:
        with standing_in({"OTHER": "1", "OTEL_EMPTY": "", "EMPTY": ""}):
            inside.update(os.environ)
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()

    assert inside == {"OTHER": "1", "EMPTY": ""}
    assert os.environ["KEPT"] == "yes"
    assert "OTHER" not in os.environ
