"""Whose the program is that a service would run."""

import os

import pytest

from otel_gpu.cli.service.trust import untrusted

OWNER = os.getuid()


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "opt" / "bin" / "otel-gpu"
    path.parent.mkdir(parents=True)
    path.write_text("")
    for place in (path, path.parent, path.parent.parent):
        place.chmod(0o755)
    return path


def found(path):
    return list(untrusted([path], OWNER))


def test_a_program_that_only_its_owner_can_change_is_trusted(program):
    """A folder that others may write to, above it, does not matter if it is sticky, as /tmp is."""
    assert found(program) == []


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_what_others_may_write_is_named(program, mode):
    """Neither the file nor any folder above it may be open to a group or to all."""
    program.parent.parent.chmod(mode)
    program.chmod(mode)

    assert found(program) == [
        f"{program.parent.parent} can be written by others",
        f"{program} can be written by others",
    ]


def test_what_belongs_to_somebody_else_is_named(program):
    """An owner can change what is theirs whatever its mode."""
    if OWNER != 0:
        pytest.skip("only root can give a file away")
    os.chown(program.parent, 1001, 1001)

    assert found(program) == [f"{program.parent} belongs to user 1001"]


def test_links_are_followed_to_where_they_lead(program, tmp_path):
    """An interpreter is often a link: what it leads to has to be safe too."""
    target = tmp_path / "home" / "python3"
    target.parent.mkdir()
    target.write_text("")
    target.parent.chmod(0o777)
    link = program.parent / "python3"
    link.symlink_to(target)

    assert found(link) == [f"{target.parent} can be written by others"]


def test_links_in_a_circle_and_missing_files_are_named(program):
    """What cannot be looked at is not trusted."""
    link = program.parent / "python3"
    link.symlink_to(link)
    missing = program.parent / "missing"

    assert found(missing) == [f"{missing}: No such file or directory"]
    assert found(link) == []
