"""Files in a folder that somebody else fills, standing for the root of a container."""

import os
import subprocess
from pathlib import Path

import pytest

from otel_gpu.procfs import mounts
from otel_gpu.procfs.file_status import status_of
from otel_gpu.procfs.mapped_files import FileId, MappedFile, file_of
from otel_gpu.procfs.mounts import server_of, shared_memory_device
from otel_gpu.procfs.process_root import ServedError, open_in_root
from otel_gpu.procfs.users import OWN, User, user_of
from otel_gpu.wire import UNKNOWN_USER
from tests.kernel.fuse import NAME, FileSystem


@pytest.fixture
def root(tmp_path):
    (tmp_path / "secret").write_text("ours")
    root = tmp_path / "root"
    (root / "tmp").mkdir(parents=True)
    (root / "tmp" / "file").write_text("theirs")
    return root


SOMEBODY = User(4242, frozenset({4243}))


def content(root, path, user=OWN, pid=None, **options):
    fd = open_in_root(str(root), path, user, pid or os.getpid(), **options)
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


def test_what_the_kernel_makes_is_no_file():
    """A container can mount it at any path; reading can take for ever, and shows us more than its owner."""
    path = f"/proc/{os.getpid()}/status"

    with pytest.raises(OSError, match="the kernel makes"):
        content("/", path)


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


def test_a_way_has_an_end(root):
    """However many steps links are, and however deep folders."""
    (root / "long").symlink_to("tmp/.." + "/tmp/.." * 500)
    deep = "/a" * 70
    (root / deep[1:]).mkdir(parents=True)

    for path in ("/long/long/tmp/file", f"{deep}/file"):
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            content(root, path)
    with pytest.raises(NotADirectoryError):
        content(root, "/tmp/file/more")


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
    assert user_of(ENDED) == User(-1, frozenset())


NOBODY = 65534
# More than there can be.
ENDED = 1 << 22


@pytest.fixture(params=["fusectl", "mountinfo"])
def knows(request, tmp_path, monkeypatch):
    """Have it known who serves file systems, by what the kernel lists or by the text of mounts."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("needs root and FUSE")
    if request.param == "mountinfo":
        monkeypatch.setattr(mounts, "_CONNECTIONS", ())
        yield request.param
        return
    folder = tmp_path / "connections"
    folder.mkdir()
    subprocess.run(["mount", "-t", "fusectl", "fusectl", folder], check=True)
    monkeypatch.setattr(mounts, "_CONNECTIONS", (str(tmp_path / "none"), str(folder)))
    yield request.param
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def served(knows, root):
    """Return a file system in the root that a user serves, and that answers nothing."""
    folder = root / "served"
    folder.mkdir()
    with FileSystem(folder, "test", user=NOBODY, content=b"theirs") as served:
        served.fall_silent()
        served.requests.clear()
        yield served


@pytest.mark.parametrize(
    "path",
    [
        f"/served/{NAME}",
        f"/served/../served/./{NAME}",
        f"/link/{NAME}",
        f"/tmp/above/{NAME}",
        "/file",
        f"/served/../tmp/../served/../link/../served/{NAME}",
        "/bound",
    ],
)
def test_nothing_on_a_file_system_that_a_user_serves_is_asked_for(root, served, path):
    """Also where a link or ``..`` leads there; nor is what lies beyond, as the way there is theirs."""
    (root / "link").symlink_to("/served")
    (root / "tmp" / "above").symlink_to("../tmp/../served")
    (root / "file").symlink_to(f"served/{NAME}")
    (root / "bound").mkdir()
    subprocess.run(["mount", "--bind", root / "served", root / "bound"], check=True)
    try:
        with pytest.raises(ServedError, match=f"^user {NOBODY} serves its file system"):
            content(root, path)
    finally:
        subprocess.run(["umount", "-l", root / "bound"], check=True)
    assert served.requests == []


def test_a_root_that_a_user_serves_is_not_looked_into(root, served):
    """As a process has that was started in a chroot."""
    with pytest.raises(ServedError):
        content(root / "served", f"/{NAME}")
    assert served.requests == []


def test_what_root_serves_is_read(knows, root):
    """Such as a bucket that the host has mounted."""
    (root / "served").mkdir()
    with FileSystem(root / "served", "test", content=b"ours"):
        assert content(root, f"/served/{NAME}") == "ours"


def test_parts_of_an_overlay_have_devices_of_their_own(root, served):
    """
    Which are those of no mount: what is below it on another file system. What the host has mounted is
    read beside what users serve, also once the process has ended.
    """
    options = f"lowerdir={root}/lower,upperdir={root}/changes/upper,workdir={root}/changes/work"
    mounted = []
    try:
        for name in ("lower", "changes", "merged"):
            (root / name).mkdir()
            overlay = ("overlay", "-o", options) if name == "merged" else ("tmpfs",)
            subprocess.run(["mount", "-t", *overlay, "test", root / name], check=True)
            mounted.append(root / name)
            if name == "changes":
                (root / "lower" / "file").write_text("below")
                for folder in ("upper", "work"):
                    (root / name / folder).mkdir()
        assert device_of(root / "merged" / "file") != device_of(root / "merged")
        for pid in (os.getpid(), ENDED):
            assert content(root, "/merged/file", pid=pid) == "below"
    finally:
        for folder in reversed(mounted):
            subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def overlaid(knows, root):
    """
    Return a file system that a user serves, and that answers nothing, and a process in a user namespace
    that has an overlay over it, and another one over that one.
    """
    for name in ("served", "empty", "merged", "nested"):
        (root / name).mkdir()
    overlay = f"mount -t overlay test -o lowerdir={root}/empty:{root}"
    script = f"{overlay}/served {root}/merged && {overlay}/merged {root}/nested && echo; read _"
    command = ["unshare", "-Urm", "sh", "-c", script]
    with (
        FileSystem(root / "served", "test", user=NOBODY, content=b"theirs") as served,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout.readline()
        served.fall_silent()
        served.requests.clear()
        yield served, process.pid
        served.answer()
        process.kill()


@pytest.mark.parametrize("path", ["merged", "nested", "link"])
def test_nothing_on_an_overlay_over_what_a_user_serves_is_asked_for(root, knows, overlaid, path):
    """Of its layers nothing is known; nor is it read for a process that has it from another one."""
    served, pid = overlaid
    (root / "link").symlink_to("../root/merged/../nested")
    known = "it may be on an overlay" if knows == "fusectl" else "its file system is not known here"

    for reader in (pid, os.getpid(), ENDED):
        with pytest.raises(ServedError, match=f"^{known}"):
            content(f"/proc/{pid}/root", f"{root}/{path}/{NAME}", pid=reader)
        # What is on no overlay is read.
        assert content(f"/proc/{pid}/root", f"{root}/tmp/file", pid=reader) == "theirs"
    assert served.requests == []


def test_an_overlay_is_read_where_no_user_serves_anything(root, overlaid, monkeypatch):
    """Where it is not known whether one does, it is not."""
    served, pid = overlaid
    served.answer()
    place = f"/proc/{pid}/root", f"{root}/merged/{NAME}"

    with pytest.raises(ServedError):
        content(*place, pid=pid)
    monkeypatch.setattr(mounts, "_does_any_user_serve", lambda _folder: False)
    if mounts._CONNECTIONS:
        assert content(*place, pid=pid) == "theirs"
    else:
        with pytest.raises(ServedError, match="mount fusectl"):
            content(*place, pid=pid)


def device_of(path):
    fd = os.open(path, os.O_PATH)
    try:
        return status_of(fd).device
    finally:
        os.close(fd)


def test_who_serves_a_file_system(knows, root, served):
    """One that is mounted nowhere any more is known to the kernel alone."""
    device = device_of(root / "served")

    assert server_of(device, os.getpid()) == NOBODY
    assert [server_of(device_of(path), os.getpid()) for path in (root, "/proc")] == [None, None]
    assert server_of(shared_memory_device(), os.getpid()) is None
    kept = os.open(root / "served", os.O_PATH)
    served.detach()
    assert server_of(device, os.getpid()) == (NOBODY if knows == "fusectl" else UNKNOWN_USER)
    os.close(kept)
    assert served.requests == []


def test_a_mapped_file_that_a_user_serves_is_not_opened(root, served):
    """Neither by the device that maps states, nor where another file is there by now."""
    served.answer()
    path = root / "served" / NAME
    fd = os.open(path, os.O_RDONLY)
    file = file_of(fd)
    os.close(fd)
    served.requests.clear()

    for known in (file, FileId(device_of(root), 1)):
        with pytest.raises(ServedError):
            MappedFile(os.getpid(), known, 0, 4096, str(path)).open()
    assert served.requests == []
