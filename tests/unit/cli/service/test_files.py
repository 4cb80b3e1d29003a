"""What an installation of the service writes, leaves and removes."""

import json
import stat
from pathlib import Path

import pytest

from otel_gpu.cli.service.files import FILES, ServiceLayout
from otel_gpu.errors import HostError

UNIT = "etc/systemd/system/otel-gpu.service"
ENVIRONMENT = "etc/otel-gpu/otel-gpu.env"
CONFIG = "etc/otel-gpu/config.yaml"


def actions(steps, root):
    return {str(step.path.relative_to(root)): step.action for step in steps}


def install(root, program="/opt/otel-gpu/bin/otel-gpu"):
    layout = ServiceLayout(root, Path(program))
    steps = layout.plan_install()
    layout.install(steps)
    return actions(steps, root)


def uninstall(root):
    layout = ServiceLayout(root)
    steps = layout.plan_uninstall()
    layout.uninstall(steps)
    return actions(steps, root)


def everything(root):
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def test_an_installation_writes_three_files_for_those_who_may_read_them(tmp_path):
    """The environment file can hold tokens, so it is root's alone."""
    assert install(tmp_path) == {UNIT: "write", ENVIRONMENT: "write", CONFIG: "write"}

    modes = {file.place: stat.S_IMODE((tmp_path / file.place).stat().st_mode) for file in FILES}
    assert [oct(mode) for mode in modes.values()] == ["0o644", "0o600", "0o644"]
    assert set(everything(tmp_path)) == {UNIT, ENVIRONMENT, CONFIG, "etc/otel-gpu/.installed.json"}


def test_the_unit_runs_the_program_that_was_named(tmp_path):
    """The path is in the unit, and nothing else of it changes."""
    install(tmp_path / "a")
    install(tmp_path / "b", "/srv/agent-1.2+x/bin/otel-gpu")
    shipped, own = ((tmp_path / root / UNIT).read_text().splitlines() for root in "ab")

    command = "run --all --summary never --config /etc/otel-gpu/config.yaml"
    assert [line for line in own if line not in shipped] == [
        f"ExecStart=/srv/agent-1.2+x/bin/otel-gpu {command}"
    ]


@pytest.mark.parametrize(
    "program",
    ["/opt/a b/otel-gpu", "/opt/%i/otel-gpu", "/opt/$HOME/x", '/opt/"x"', "/a\nUser=root", "opt/x"],
)
def test_a_program_that_a_unit_would_read_otherwise_is_refused(tmp_path, program):
    """Spaces, specifiers, variables, quotes and new lines have a meaning in a unit."""
    with pytest.raises(HostError, match="a unit cannot run this path"):
        ServiceLayout(tmp_path, Path(program))


def test_a_second_installation_changes_nothing(tmp_path):
    """What is there already is left, down to its time."""
    install(tmp_path)
    before = everything(tmp_path)
    written_ns = (tmp_path / UNIT).stat().st_mtime_ns

    assert install(tmp_path) == {UNIT: "unchanged", ENVIRONMENT: "unchanged", CONFIG: "unchanged"}
    assert everything(tmp_path) == before
    assert (tmp_path / UNIT).stat().st_mtime_ns == written_ns


def test_a_changed_file_is_kept_and_the_new_one_is_put_beside_it(tmp_path):
    """The operator's configuration is never overwritten, however often."""
    install(tmp_path)
    shipped = (tmp_path / CONFIG).read_bytes()
    (tmp_path / CONFIG).write_text("spans: {mode: none}\n")

    assert install(tmp_path)[CONFIG + ".new"] == "beside"
    assert install(tmp_path)[CONFIG + ".new"] == "unchanged"
    assert (tmp_path / CONFIG).read_text() == "spans: {mode: none}\n"
    assert (tmp_path / (CONFIG + ".new")).read_bytes() == shipped


def test_a_file_of_an_older_version_that_nobody_changed_is_brought_up_to_date(tmp_path):
    """Its digest is the one that was written down when it was installed."""
    install(tmp_path, "/opt/older/bin/otel-gpu")

    assert install(tmp_path)[UNIT] == "replace"
    assert "ExecStart=/opt/otel-gpu/bin/otel-gpu run" in (tmp_path / UNIT).read_text()


def test_a_file_from_elsewhere_counts_as_changed(tmp_path):
    """What another tool installed is not ours to replace."""
    (tmp_path / UNIT).parent.mkdir(parents=True)
    (tmp_path / UNIT).write_text("[Service]\n")

    assert install(tmp_path)[UNIT + ".new"] == "beside"
    assert (tmp_path / UNIT).read_text() == "[Service]\n"


@pytest.mark.parametrize("record", [b"", b"[1]", b"\xff{", b'{"/etc": 7}'])
def test_a_damaged_record_makes_everything_the_operators(tmp_path, record):
    """In doubt nothing is overwritten."""
    install(tmp_path, "/opt/older/bin/otel-gpu")
    (tmp_path / "etc/otel-gpu/.installed.json").write_bytes(record)

    assert install(tmp_path)[UNIT + ".new"] == "beside"
    assert isinstance(json.loads((tmp_path / "etc/otel-gpu/.installed.json").read_text()), dict)


def test_a_removal_leaves_no_trace(tmp_path):
    """What was installed goes, with the folder that was made for it."""
    install(tmp_path, "/opt/older/bin/otel-gpu")

    assert uninstall(tmp_path) == {UNIT: "remove", ENVIRONMENT: "remove", CONFIG: "remove"}
    assert everything(tmp_path) == {}
    assert not (tmp_path / "etc/otel-gpu").exists()
    assert uninstall(tmp_path) == {}


def test_a_removal_keeps_what_was_changed(tmp_path):
    """The operator's tokens and settings are there for the next installation."""
    install(tmp_path)
    (tmp_path / ENVIRONMENT).write_text("OTEL_EXPORTER_OTLP_ENDPOINT=http://gateway:4317\n")
    install(tmp_path)

    assert uninstall(tmp_path) == {
        UNIT: "remove", ENVIRONMENT: "keep", ENVIRONMENT + ".new": "remove", CONFIG: "remove"
    }  # fmt: skip
    assert set(everything(tmp_path)) == {ENVIRONMENT, "etc/otel-gpu/.installed.json"}


def test_what_cannot_be_written_is_said(tmp_path):
    """A file where a folder has to be is an error with a hint, and nothing is half written."""
    (tmp_path / "etc").write_text("")

    with pytest.raises(HostError) as raised:
        install(tmp_path)

    assert "--root" in raised.value.hint
    assert set(everything(tmp_path)) == {"etc"}
