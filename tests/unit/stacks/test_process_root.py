"""Files in a folder that somebody else fills, standing for the root of a container."""

import os

import pytest

from otel_gpu.stacks.process_root import open_in_root


@pytest.fixture
def root(tmp_path):
    (tmp_path / "secret").write_text("ours")
    root = tmp_path / "root"
    (root / "tmp").mkdir(parents=True)
    (root / "tmp" / "file").write_text("theirs")
    return root


def content(root, path, **options):
    fd = open_in_root(str(root), path, **options)
    with os.fdopen(fd) as stream:
        return stream.read()


def test_a_path_starts_at_the_root(root):
    """As the process would read it."""
    assert content(root, "/tmp/file") == "theirs"
    assert content(root, "tmp/file") == "theirs"


def test_links_stay_in_the_root(root):
    """An absolute one too, though for us it would lead to our own files."""
    (root / "absolute").symlink_to("/tmp/file")
    (root / "outwards").symlink_to("../../../tmp/file")
    (root / "tmp" / "secret").symlink_to(root.parent / "secret")

    assert content(root, "/absolute") == "theirs"
    assert content(root, "/outwards") == "theirs"
    assert content(root, "/../../tmp/file") == "theirs"
    with pytest.raises(FileNotFoundError):
        content(root, "/tmp/secret")


def test_the_file_itself_may_have_to_be_no_link(root):
    """Where anybody may write, a link is somebody's trick."""
    (root / "tmp" / "link").symlink_to("file")

    assert content(root, "/tmp/link") == "theirs"
    with pytest.raises(OSError, match="not a regular file"):
        content(root, "/tmp/link", follow=False)


def test_what_is_no_regular_file_is_not_opened(root):
    """A pipe would keep us waiting for its other end."""
    os.mkfifo(root / "pipe")

    for path in ("/pipe", "/tmp"):
        with pytest.raises(OSError, match="not a regular file"):
            content(root, path)


def test_what_is_not_there_is_an_error(root):
    """Also a root that is not there, of a process that has ended."""
    for folder, path in ((root, "/nothing"), (root / "nothing", "/tmp/file")):
        with pytest.raises(FileNotFoundError):
            content(folder, path)


def test_links_of_proc_are_not_followed():
    """They lead anywhere, without a path."""
    with pytest.raises(OSError, match="symbolic links"):
        content("/", "/proc/self/exe")
