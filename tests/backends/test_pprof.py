"""``go tool pprof`` itself opens what we write for it."""

import subprocess

import pytest

from otel_gpu.report.render.pprof import pprof_file
from otel_gpu.report.stacks.top_stacks import CPU, GRAPHS, WAITED
from tests.backends import builds
from tests.unit.report.busy_threads import SHARES, report_of

pytestmark = pytest.mark.backends


def pprof(path, *arguments):
    """What it prints."""
    command = [builds.pprof(), *arguments, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_shows_exact_shares(tmp_path):
    """With the time and the shares of the program."""
    path = tmp_path / "cpu.pb.gz"
    path.write_bytes(pprof_file(report_of(kind=CPU, threads=["loader"])))

    lines = pprof(path, "-top").splitlines()

    assert "Type: cpu" in lines
    # Frames of Python have brackets in their names, and keep them.
    assert lines[-1].endswith("<module>")
    shown = {line.split()[-1]: line.split()[1] for line in lines if line.endswith(tuple(SHARES))}
    assert shown == {name: f"{share:.2f}%" for name, share in SHARES.items()}


@pytest.mark.parametrize("kind", [*GRAPHS, WAITED])
def test_it_opens_every_kind(tmp_path, kind):
    """And knows whose stacks they are."""
    path = tmp_path / "profile.pb.gz"
    path.write_bytes(pprof_file(report_of(kind=kind)))

    assert "trainer" in pprof(path, "-tags")
    if kind in GRAPHS:
        assert "trainer" in pprof(path, "-top", "-tagroot", "service")
