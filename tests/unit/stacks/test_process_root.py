"""Files in a folder that somebody else fills, standing for the root of a container."""

import os

import pytest

from otel_gpu.procfs.users import OWN, User, user_of
from otel_gpu.stacks.process_root import open_in_root


@pytest.fixture
def root(tmp_path):
    (tmp_path / "secret").write_text("ours")
    root = tmp_path / "root"
    (root / "tmp").mkdir(parents=True)
    (root / "tmp" / "file").write_text("theirs")
    return root


SOMEBODY = User(4242, frozenset({4243}))


def content(root, path, user=OWN, **options):
    fd = open_in_root(str(root), path, user, **options)
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


def test_a_loop_of_links_has_an_end(root):
    (root / "loop").symlink_to("loop")

    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        content(root, "/loop")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize(
    ("owner", "group", "mode", "is_read"),
    [
        (0, 0, 0o644, True),
        (0, 0, 0o640, False),
        (0, 4243, 0o640, True),
        (0, 4243, 0o604, False),
        (4242, 0, 0o400, True),
        (4242, 4243, 0o044, False),
    ],
)
def test_a_file_is_read_for_who_can_read_it(root, owner, group, mode, is_read):
    """By the class that the user is in, as the kernel has it."""
    file = root / "tmp" / "file"
    os.chown(file, owner, group)
    file.chmod(mode)
    (root / "link").symlink_to("tmp/file")

    for path in ("/tmp/file", "/link"):
        if is_read:
            assert content(root, path, SOMEBODY) == "theirs"
        else:
            with pytest.raises(PermissionError):
                content(root, path, SOMEBODY)
    assert content(root, "/link") == "theirs"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_folder_that_a_user_cannot_search_hides_its_files(root):
    """Also where a link leads into it."""
    inner = root / "closed" / "inner"
    inner.mkdir(parents=True)
    (inner / "file").write_text("secret")
    (root / "closed").chmod(0o700)
    (root / "link").symlink_to("closed/inner/file")
    (root / "folder").symlink_to("closed/inner")

    for path in ("/closed/inner/file", "/link", "/folder/file"):
        assert content(root, path) == "secret"
        with pytest.raises(PermissionError):
            content(root, path, SOMEBODY)


def test_a_process_opens_files_as_its_user_with_its_groups():
    user = user_of(os.getpid())

    assert user.uid == os.geteuid()
    assert user.gids == {os.getegid(), *os.getgroups()}
    assert user_of(1 << 22) == User(-1, frozenset())
