"""What doctor says of the agent that runs as a service."""

import pytest

from otel_gpu.cli.service.systemd import examine_service
from otel_gpu.errors import HostError

RUNNING = "LoadState=loaded\nActiveState={active}\nMainPID=71\nStatusText={word}\n"


def examine(active, word):
    return list(examine_service(lambda _: RUNNING.format(active=active, word=word)))


def test_the_errors_of_the_running_agent_are_a_warning():
    """By place, with what is switched off, and where to read on."""
    (finding,) = examine("active", "errors: store 1,000; switched off: store")

    assert (finding.name, finding.status) == ("service", "warning")
    assert finding.detail == "process 71: errors: store 1,000; switched off: store"
    assert "journalctl" in finding.hint


@pytest.mark.parametrize(("word", "said"), [("capturing", "capturing"), ("", "running")])
def test_an_agent_without_errors_is_fine(word, said):
    """Also one of a version that says nothing."""
    (finding,) = examine("active", word)

    assert (finding.status, finding.detail) == ("ok", f"process 71: {said}")


def test_without_a_running_service_there_is_nothing_to_say():
    """It has failed, is not there, or there is no systemd."""

    def refuse(_):
        raise HostError("no systemd")

    assert examine("failed", "errors: store 1") == []
    assert list(examine_service(refuse)) == []
