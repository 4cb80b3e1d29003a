"""``otel-gpu replay`` over the network; tests/replay has what it writes to files."""

import os

import pytest

from otel_gpu import cli
from tests.receiver import OtlpReceiver
from tests.replay.make_recordings import recording_path


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_replay_reaches_the_endpoint_of_the_environment(monkeypatch, protocol):
    """Spans and metrics of a recording arrive where the standard variables point."""
    with OtlpReceiver() as receiver:
        endpoint = receiver.grpc_endpoint if protocol == "grpc" else receiver.http_endpoint
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)

        assert cli.main(["replay", str(recording_path("training"))]) == 0

        assert len(receiver.spans()) == 42
        assert "gpu.cuda.call.duration" in {series.name for series in receiver.metrics()}


def test_a_replay_that_reaches_nobody_fails(monkeypatch, capsys):
    """When spans cannot be delivered the exit code and a count say so."""
    with OtlpReceiver() as receiver:
        endpoint = receiver.http_endpoint
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")

    assert cli.main(["replay", str(recording_path("training"))]) == 1

    assert "otel-gpu: spans that could not be exported: " in capsys.readouterr().err


def test_a_replay_without_a_destination_says_so(monkeypatch, capsys):
    """Forgetting the endpoint looks like nothing; so it is said."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)

    assert cli.main(["replay", str(recording_path("training"))]) == 0

    assert capsys.readouterr().err == (
        "otel-gpu: nothing is exported: set OTEL_EXPORTER_OTLP_ENDPOINT or give --otlp-file\n"
    )
