"""
Opens, configures, loads, attaches and closes a BPF object file.

    with BpfObject(path) as bpf:
        bpf.set_read_only_data(".rodata.settings", settings)
        bpf.load()
        bpf.attach("sched_switch")

Attachments end with the object. Nothing is pinned, so the kernel detaches everything if the agent dies.
"""

import contextlib
import ctypes
import errno
import logging
import os
import platform
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Self

from otel_gpu.capture.bpf.bcc.kernel_types import KernelTypes
from otel_gpu.capture.bpf.bpf_map import BpfMap
from otel_gpu.capture.bpf.cpu_clock import CpuClock
from otel_gpu.capture.bpf.libbpf import (
    BPF_F_NO_PREALLOC,
    BPF_TRACE_UPROBE_MULTI,
    Libbpf,
    ObjectOpenOptions,
    UprobeOptions,
)
from otel_gpu.capture.probes.attacher import AnyLink, Attacher, ProbeLink, Remainder
from otel_gpu.capture.probes.detaching import Link, Links, detach_side_by_side
from otel_gpu.errors import BpfError, HostError

OBJECT_FOLDER = Path(__file__).resolve().parents[2] / "_bpf"
_SYSTEM_WIDE = -1
# The size of the kernel's buffer for iterators.
_ITERATOR_BYTES = 32768

_logger = logging.getLogger(__name__)


def object_path(*, has_btf: bool = True) -> Path:
    """
    Return the path of this machine's BPF object, in the variant for kernels with or without BTF.

    Raises:
        HostError: There is none for this architecture.
    """
    variant = "" if has_btf else ".nobtf"
    path = OBJECT_FOLDER / f"otel_gpu.{platform.machine()}{variant}.bpf.o"
    if not path.exists():
        raise HostError(
            f"there is no BPF object for {platform.machine()}",
            hint="run `make bpf`, or install a wheel built for this machine",
        )
    return path


class BpfObject:
    """
    One BPF object file with its programs, maps and attachments.

    ``multi``: attach many ``uprobes`` at once where the kernel can. ``kernel_types``: for a kernel
    without BTF.

    Raises:
        HostError: libbpf is missing or too old.
    """

    def __init__(
        self,
        path: Path,
        uprobes: Sequence[str] = (),
        *,
        multi: bool = True,
        kernel_types: KernelTypes | None = None,
    ) -> None:
        self.libbpf = Libbpf()
        self._path = path
        self._kernel_types = kernel_types
        self._uprobes = uprobes
        self._links = Links()
        self._max_entries: dict[str, int] = {}
        self._grown: list[str] = []
        self._read_only_data: dict[str, bytes] = {}
        self._left_out: list[str] = []
        self._multi_variants: dict[str, str] = {}
        self._put_off: dict[str, tuple[str, ...]] = {}
        self._late_objects: dict[tuple[str, ...], int] = {}
        self._late_errors: dict[tuple[str, ...], BpfError] = {}
        self._only = ""
        self._object = 0
        self._multi = multi and bool(uprobes)
        self._attacher: Attacher | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def start_attacher(self, kept: Collection[int], at_turn: Callable[[], object]) -> None:
        """
        Let another process place probes from now on, see ``Attacher``; after ``load``.

        If it cannot be started, this process places them.
        """
        loaded = [program for program in self._uprobes if program not in self._put_off]
        needed = {self.program_fd(program) for program in loaded}
        # The attacher loads postponed programs, which use the maps of the others.
        if len(loaded) < len(self._uprobes):
            needed |= {fd for _, fd in self._map_fds()}
        try:
            self._attacher = Attacher(self._attach_uprobes, {*needed, *kept}, at_turn)
        except OSError as error:
            _logger.info("probes are placed without a process for it: %s", error.strerror)

    @property
    def attacher(self) -> Attacher | None:
        """The process that places probes; None if this one does."""
        return self._attacher

    @property
    def can_queue(self) -> bool:
        """Whether the probes of another file can be queued behind those that the kernel delays."""
        return self._attacher is None or self._attacher.can_queue

    def take_answers(self) -> bool:
        """Handle the attacher's answers, and return whether the kernel delays further ones."""
        if self._attacher is None:
            return False
        self._attacher.take_answers()
        return self._attacher.is_late

    def detach_all(self, at_turn: Callable[[], object] = lambda: None) -> Remainder | None:
        """
        Detach every program, and call ``at_turn`` repeatedly until that is done.

        Returns:
            What the attacher has yet to detach; None: no program runs any more.
        """
        self._links.detach_all(at_turn)
        attacher, self._attacher = self._attacher, None
        return attacher.close() if attacher else None

    def close(self) -> None:
        """Detach every program and close the object."""
        self.detach_all()
        for pointer in (*self._late_objects.values(), self._object):
            if pointer:
                self.libbpf.raw.bpf_object__close(pointer)
        self._late_objects, self._object = {}, 0

    def set_max_entries(self, name: str, entries: int) -> None:
        """Set the size of a map; before ``load``."""
        self._max_entries[name] = entries

    def let_grow(self, name: str) -> None:
        """Allocate a hash map's entries on demand, not in advance; before ``load``."""
        self._grown.append(name)

    def set_read_only_data(self, section: str, data: bytes) -> None:
        """Set the content of a ``.rodata`` section, of its exact size; before ``load``."""
        self._read_only_data[section] = data

    def leave_out(self, *programs: str) -> None:
        """Never load these programs; before ``load``."""
        self._left_out += programs

    def set_multi_variant(self, program: str, variant: str) -> None:
        """
        Load ``variant`` in the place of a uprobe's program if many uprobes are attached at once.

        Call before ``load``; to attach it, name the program.
        """
        self._multi_variants[program] = variant

    def put_off(self, *programs: str) -> None:
        """
        Load these programs together when the first of them is attached; call before ``load``.

        Each group costs about 30 ms, so it pays only for programs that take long to verify.
        """
        self._put_off |= dict.fromkeys(programs, programs)

    def leave_out_all_but(self, program: str) -> None:
        """Load only this program; before ``load``."""
        self._only = program

    def load(self) -> None:
        """
        Create the maps and have the kernel verify the programs.

        Raises:
            HostError: This user is not allowed to load programs, or the headers lack a type.
            BpfError: With the verifier's log.
        """
        self._load_once()
        # Only a loaded program can test for uprobe_multi (since Linux 6.6): for a folder the kernel
        # returns EBADF if it has it, and EINVAL if not.
        if self._multi and self._create_multi(self._uprobes[0], "/", [(0, 0)]) != -errno.EBADF:
            self.libbpf.raw.bpf_object__close(self._object)
            self._multi = False
            self._load_once()

    def _load_once(self) -> None:
        call = self.libbpf.call
        with self._kernel_btf() as btf_path:
            self._object = self._open(btf_path)
            for name, entries in self._max_entries.items():
                call("bpf_map__set_max_entries", self._map(name), entries, what=f"map {name}")
            for name in self._grown:
                flags = (self._map(name), BPF_F_NO_PREALLOC)
                call("bpf_map__set_map_flags", *flags, what=f"map {name}")
            for section, data in self._read_only_data.items():
                what = f"{section} does not take {len(data)} bytes"
                initial = (self._map(section), data, len(data))
                call("bpf_map__set_initial_value", *initial, what=what)
            variants = self._multi_variants
            not_used = variants.keys() if self._multi else variants.values()
            left_out = {*self._left_out, *self._put_off, *not_used}
            only = self._only
            try:
                self._load(
                    self._object, lambda name: name == only if only else name not in left_out
                )
            except BpfError as error:
                if os.geteuid() and error.log and "not permitted" in str(error):
                    raise HostError(f"{error} to this user", hint=error.hint) from error
                raise

    def _load_late(self, programs: tuple[str, ...]) -> int:
        # A second object from the same file, which uses the maps of the first.
        if error := self._late_errors.get(programs):
            raise error
        fds = dict(self._map_fds())
        with self._kernel_btf() as btf_path:
            pointer = self._open(btf_path)
            try:
                for name, bpf_map in self._maps_of(pointer):
                    what = f"map {name}"
                    self.libbpf.call("bpf_map__reuse_fd", bpf_map, fds[name], what=what)
                self._load(pointer, programs.__contains__)
            except BpfError as error:
                self.libbpf.raw.bpf_object__close(pointer)
                self._late_errors[programs] = error
                raise
        self._late_objects[programs] = pointer
        return pointer

    @contextlib.contextmanager
    def _kernel_btf(self) -> Iterator[bytes | None]:
        if self._kernel_types is None:
            yield None
            return
        with os.fdopen(os.memfd_create("otel_gpu_kernel_types"), "wb", buffering=0) as stream:
            stream.write(self._kernel_types.to_btf(self.libbpf))
            yield f"/proc/self/fd/{stream.fileno()}".encode()

    def _open(self, btf_path: bytes | None) -> int:
        log = self.libbpf.verifier_log
        options = ObjectOpenOptions(
            sz=ctypes.sizeof(ObjectOpenOptions),
            object_name=b"otel_gpu",
            btf_custom_path=btf_path,
            kernel_log_buf=ctypes.addressof(log),
            kernel_log_size=ctypes.sizeof(log),
        )
        path, what = os.fsencode(self._path), f"{self._path} is not opened"
        return self.libbpf.pointer("bpf_object__open_file", path, options, what=what)

    def _load(self, pointer: int, is_wanted: Callable[[str], bool]) -> None:
        call = self.libbpf.call
        for name, program in self._programs_of(pointer):
            if not is_wanted(name):
                call("bpf_program__set_autoload", program, False)  # noqa: FBT003
            elif self._multi and name in (*self._uprobes, *self._multi_variants.values()):
                kind = BPF_TRACE_UPROBE_MULTI
                call("bpf_program__set_expected_attach_type", program, kind)
        call("bpf_object__load", pointer, what="the BPF programs are not loaded")

    def _programs_of(self, pointer: int) -> Iterator[tuple[str, int]]:
        raw, program = self.libbpf.raw, None
        while program := raw.bpf_object__next_program(pointer, program):
            yield raw.bpf_program__name(program).decode(), program

    def _maps_of(self, pointer: int) -> Iterator[tuple[str, int]]:
        raw, bpf_map = self.libbpf.raw, None
        while bpf_map := raw.bpf_object__next_map(pointer, bpf_map):
            yield raw.bpf_map__name(bpf_map).decode(), bpf_map

    def _map_fds(self) -> Iterator[tuple[str, int]]:
        for name, bpf_map in self._maps_of(self._object):
            yield name, self.libbpf.call("bpf_map__fd", bpf_map, what=f"map {name}")

    def _map(self, name: str) -> int:
        find, what = "bpf_object__find_map_by_name", f"map {name}"
        return self.libbpf.pointer(find, self._object, name.encode(), what=what)

    def _program(self, name: str) -> int:
        find, what = "bpf_object__find_program_by_name", f"program {name}"
        pointer = self._object
        if self._multi:
            name = self._multi_variants.get(name, name)
        if programs := self._put_off.get(name):
            pointer = self._late_objects.get(programs) or self._load_late(programs)
        return self.libbpf.pointer(find, pointer, name.encode(), what=what)

    def map(self, name: str) -> BpfMap:
        """Return a map; after ``load``."""
        pointer = self._map(name)
        raw = self.libbpf.raw
        fd = self.libbpf.call("bpf_map__fd", pointer, what=f"map {name}")
        sizes = (raw.bpf_map__key_size, raw.bpf_map__value_size, raw.bpf_map__max_entries)
        return BpfMap(self.libbpf, name, fd, *(int(size(pointer)) for size in sizes))

    def program_fd(self, name: str) -> int:
        """Return the file descriptor of a program, which the object closes; after ``load``."""
        return self.libbpf.call("bpf_program__fd", self._program(name), what=f"program {name}")

    def attach(self, program: str) -> Link:
        """Attach a program to the tracepoint that its section names."""
        return self._keep(self._attach(program))

    def attach_clock(self, program: str, cpu: int, period_ns: int) -> CpuClock:
        """Run a program on each tick of a clock of one CPU, in whatever context the tick interrupts."""
        what = f"{program} is not attached to CPU {cpu}"
        if (fd := self.libbpf.open_cpu_clock(cpu, period_ns)) < 0:
            raise self.libbpf.error(what, -fd)
        function = "bpf_program__attach_perf_event"
        try:
            pointer = self.libbpf.pointer(function, self._program(program), fd, what=what)
        except BpfError:
            os.close(fd)
            raise
        return CpuClock(self._keep(pointer), fd)

    def attach_iterator(self, program: str) -> Callable[[], bytes]:
        """Return a function that runs an iterator program once and returns its output."""
        pointer = self._attach(program)
        self._keep(pointer)
        link = self.libbpf.call("bpf_link__fd", pointer)

        def run() -> bytes:
            output = bytearray()
            fd = self.libbpf.call("bpf_iter_create", link, what=f"{program} is not run")
            try:
                while chunk := os.read(fd, _ITERATOR_BYTES):
                    output += chunk
            finally:
                os.close(fd)
            return bytes(output)

        return run

    def _attach(self, program: str) -> int:
        what = f"{program} is not attached"
        return self.libbpf.pointer("bpf_program__attach", self._program(program), what=what)

    def attach_uprobes(
        self, program: str, path: str, probes: Sequence[tuple[int, int]], *, on_return: bool = False
    ) -> list[AnyLink]:
        """
        Attach a program to instructions of a file, in every process that maps it.

        The path can be ``/proc/self/fd/N``. A probe is the file offset of an instruction, and a cookie,
        which the program gets from ``bpf_get_attach_cookie``. With ``on_return``, the stack pointer
        at the instruction must be that of the function's entry. The attacher can place probes later.

        Raises:
            BpfError: One probe failed, so none is attached.
        """
        if not probes:
            return []
        if self._attacher is None:
            placed = self._attach_uprobes(program, path, probes=probes, on_return=on_return)
            return [self._links.add(link) for link, _ in placed]
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError as error:
            what = f"{program} is not attached to {path}"
            raise self.libbpf.error(what, error.errno or 0) from error
        try:
            return [self._attacher.attach(program, fd, probes, on_return=on_return)]
        finally:
            os.close(fd)

    def _attach_uprobes(
        self, program: str, path: str, probes: Sequence[tuple[int, int]], on_return: bool
    ) -> list[tuple[Link, int]]:
        # In this process. Returns for each link a function that detaches it, and its descriptor.
        if self._multi:
            fd = self._create_multi(program, path, probes, on_return=on_return)
            if fd < 0:
                raise self.libbpf.error(f"{program} is not attached to {path}", -fd)
            return [(lambda: os.close(fd), fd)]
        placed: list[tuple[Link, int]] = []
        try:
            for probe in probes:
                one = self._attach_uprobe(program, path, *probe, on_return)
                placed.append(one)
        except BpfError:
            detach_side_by_side(link for link, _ in placed)
            raise
        return placed

    def _create_multi(
        self, program: str, path: str, probes: Sequence[tuple[int, int]], *, on_return: bool = False
    ) -> int:
        return self.libbpf.create_uprobe_multi(
            self.program_fd(program), os.fsencode(path), probes, on_return=on_return
        )

    def _attach_uprobe(
        self, program: str, path: str, file_offset: int, cookie: int, on_return: bool
    ) -> tuple[Link, int]:
        options = UprobeOptions(ctypes.sizeof(UprobeOptions), 0, cookie, on_return, None)
        place = (_SYSTEM_WIDE, os.fsencode(path), file_offset, options)
        what = f"{program} is not attached to {path}+{file_offset:#x}"
        function = "bpf_program__attach_uprobe_opts"
        pointer = self.libbpf.pointer(function, self._program(program), *place, what=what)
        fd = self.libbpf.call("bpf_link__fd", pointer)
        return (lambda: self.libbpf.raw.bpf_link__destroy(pointer)), fd

    def _keep(self, pointer: int) -> Link:
        return self._links.add(lambda: self.libbpf.raw.bpf_link__destroy(pointer))

    def detach(self, links: Sequence[AnyLink]) -> None:
        """Undo attachments; the attacher may undo its own later."""
        self._links.detach(link for link in links if not isinstance(link, ProbeLink))
        probes = [link for link in links if isinstance(link, ProbeLink)]
        if probes and self._attacher:
            self._attacher.detach(probes)
