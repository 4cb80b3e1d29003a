"""Names of functions in processes of containers: other mounts, other pid numbers."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_gpu.stacks.mappings import ElfFiles, Mappings
from otel_gpu.stacks.symbols.native_names import Symbols
from otel_gpu.stacks.symbols.symbol_cache import SymbolCache
from tests.unit.stacks.elf_files import image, library

pytestmark = pytest.mark.kernel

SOURCE = """
__attribute__((noinline, used)) static int hidden(int n) { return n * n; }
int (*shown(void))(int) { return hidden; }
"""
# Where only this process sees it: the library, its debug file, and a map of generated code.
CONTAINER = """
set -e
mount -t tmpfs none /mnt
mkdir -p /mnt/lib /mnt/tmp /mnt/debug/.build-id/{prefix}
cp {folder}/library.so /mnt/lib/
cp {folder}/library.debug /mnt/debug/.build-id/{prefix}/{rest}.debug
mkdir -p /usr/lib/debug
mount --bind /mnt/debug /usr/lib/debug
mount -t tmpfs none /tmp
exec {python} -I -S -c '{program}'
"""
PROGRAM = """
import ctypes, os, sys
library = ctypes.CDLL("/mnt/lib/library.so")
library.shown.restype = ctypes.c_void_p
with open(f"/tmp/perf-{os.getpid()}.map", "w") as names:
    names.write("7000 20 generated\\n")
print(os.getpid(), library.shown(), flush=True)
sys.stdin.read()
"""


class Container:
    """A process with mounts and a pid of its own; ``hidden`` is the address of a function."""

    def __init__(self, folder: Path) -> None:
        path = library(folder, SOURCE)
        build_id = image(path).build_id or ""
        subprocess.run(["objcopy", "--only-keep-debug", path, folder / "library.debug"], check=True)
        subprocess.run(["strip", path], check=True)
        script = CONTAINER.format(
            prefix=build_id[:2],
            rest=build_id[2:],
            folder=folder,
            python=Path(sys.executable).resolve(),  # not in a folder that is hidden
            program=PROGRAM,
        )
        self.process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        vpid, hidden = self.process.stdout.readline().split()
        self.vpid, self.hidden = int(vpid), int(hidden)
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        self.pid = int(children.read_text())

    def end(self) -> None:
        self.process.communicate()


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    if shutil.which("unshare") is None:
        pytest.skip("unshare (util-linux) is not installed")
    container = Container(tmp_path)
    yield container
    container.end()


@pytest.fixture
def symbols() -> Iterator[Symbols]:
    symbols = Symbols(SymbolCache(None))
    yield symbols
    symbols.close()


def test_a_library_and_its_debug_file_are_read_where_the_process_has_them(
    container: Container, symbols: Symbols
) -> None:
    """Both lie on a file system that is mounted nowhere else; only the debug file has the name."""
    mappings = Mappings(container.pid, ElfFiles())
    mapping = mappings.find(container.hidden)

    assert mapping is not None
    assert mapping.path == "/mnt/lib/library.so"
    assert not Path(mapping.path).exists()
    assert symbols.name(mapping, container.hidden + 1) == ("hidden", 1)


def test_names_of_generated_code_are_under_the_pid_that_the_process_has_there(
    container: Container, symbols: Symbols
) -> None:
    """It writes them to its own /tmp, and knows no other number."""
    mappings = Mappings(container.pid, ElfFiles())
    mapping = mappings.find(container.hidden)

    assert mapping is not None
    assert container.vpid == 1 != container.pid
    assert symbols.name(mapping._replace(elf=None), 0x7008) == ("generated", 8)


def test_a_container_that_is_gone_is_not_kept_by_what_was_open(
    container: Container, symbols: Symbols
) -> None:
    """Its library is read until its mappings are closed, and not after."""
    images = ElfFiles()
    mappings = Mappings(container.pid, images)
    container.end()
    mapping = mappings.find(container.hidden)

    assert mapping is not None
    assert mapping.elf is not None
    assert len(mapping.elf.read(container.hidden - mapping.bias, 4)) == 4
    mappings.close()
    assert len(images._files) == 0
