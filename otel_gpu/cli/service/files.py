"""
Installs and removes the files of the service.

A file that the operator changed is kept: an update writes the new one beside it, and an uninstall
leaves it. Digests of installed files are recorded, so unchanged files can be updated.
"""

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from otel_gpu.errors import HostError

UNIT = "otel-gpu.service"
# The program of the unit in deploy/systemd.
DEFAULT_PROGRAM = Path("/opt/otel-gpu/bin/otel-gpu")
_SOURCES = (
    Path(__file__).resolve().parent / "systemd",  # in a wheel
    Path(__file__).resolve().parents[3] / "deploy" / "systemd",  # in a checkout
)
_RECORD = Path("etc/otel-gpu/.installed.json")
# systemd would take other characters for quotes, specifiers or variables.
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./+-]+")
_MAX_BYTES = 1 << 20


class FileAction(StrEnum):
    """What is done to a file."""

    WRITE = "write"
    REPLACE = "replace"
    """Update one that the operator did not change."""
    BESIDE = "beside"
    """Write next to one that the operator changed."""
    UNCHANGED = "unchanged"
    REMOVE = "remove"
    KEEP = "keep"


class ServiceFile(NamedTuple):
    """A file of ``deploy/systemd``, its path below the root, and its permissions."""

    name: str
    place: Path
    mode: int


FILES = (
    ServiceFile(UNIT, Path("etc/systemd/system") / UNIT, 0o644),
    # It can contain headers with tokens.
    ServiceFile("otel-gpu.env", Path("etc/otel-gpu/otel-gpu.env"), 0o600),
    ServiceFile("config.yaml", Path("etc/otel-gpu/config.yaml"), 0o644),
)


class FileChange(NamedTuple):
    """The change of one file; ``data`` is empty if nothing is written."""

    action: FileAction
    path: Path
    data: bytes = b""
    mode: int = 0o644


class ServiceLayout:
    """
    The service's files below one root (of this host or of an image), for one program.

    Raises ``HostError`` if a unit cannot contain the program's path, or a file cannot be written.
    """

    def __init__(self, root: Path, program: Path = DEFAULT_PROGRAM) -> None:
        if not _PLAIN_PATH.fullmatch(str(program)):
            raise HostError(
                f"{program}: a unit cannot run this path",
                hint=f"install otel-gpu at a path such as {DEFAULT_PROGRAM}",
            )
        self._root = root
        self._program = program

    def plan_install(self) -> list[FileChange]:
        """Return the changes of an installation, without making them."""
        recorded = self._recorded()
        return [self._install(file, recorded) for file in FILES]

    def plan_uninstall(self) -> list[FileChange]:
        """Return the changes of an uninstallation, without making them."""
        return [*self._removals(self._recorded())]

    def install(self, steps: list[FileChange]) -> None:
        """Make the changes of an installation, and record the digests of written files."""
        recorded = dict(self._recorded())
        for step in steps:
            if step.data:
                _write(step.path, step.data, step.mode)
            if step.action in {FileAction.WRITE, FileAction.REPLACE}:
                recorded[self._key(step.path)] = _digest(step.data)
        text = json.dumps(recorded, indent=2, sort_keys=True) + "\n"
        _write(self._root / _RECORD, text.encode(), 0o644)

    def uninstall(self, steps: list[FileChange]) -> None:
        """Make the changes of an uninstallation."""
        removed = [step.path for step in steps if step.action == FileAction.REMOVE]
        if not any(step.action == FileAction.KEEP for step in steps):
            removed.append(self._root / _RECORD)
        for path in removed:
            with _explained(path):
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty
            (self._root / _RECORD).parent.rmdir()

    def _install(self, file: ServiceFile, recorded: Mapping[str, str]) -> FileChange:
        path, data = self._root / file.place, self._shipped(file)
        present = _read(path)
        if present is None:
            return FileChange(action=FileAction.WRITE, path=path, data=data, mode=file.mode)
        if present == data:
            return FileChange(FileAction.UNCHANGED, path)
        if _digest(present) == recorded.get(self._key(path)):
            return FileChange(action=FileAction.REPLACE, path=path, data=data, mode=file.mode)
        beside = path.with_name(path.name + ".new")
        if _read(beside) == data:
            return FileChange(FileAction.UNCHANGED, beside)
        return FileChange(action=FileAction.BESIDE, path=beside, data=data, mode=file.mode)

    def _removals(self, recorded: Mapping[str, str]) -> Iterator[FileChange]:
        for file in FILES:
            path, data = self._root / file.place, self._shipped(file)
            present = _read(path)
            if present is not None:
                ours = present == data or _digest(present) == recorded.get(self._key(path))
                yield FileChange(FileAction.REMOVE if ours else FileAction.KEEP, path)
            beside = path.with_name(path.name + ".new")
            if _read(beside) is not None:
                yield FileChange(FileAction.REMOVE, beside)

    def _shipped(self, file: ServiceFile) -> bytes:
        for folder in _SOURCES:
            if (data := _read(folder / file.name)) is not None:
                return data.replace(bytes(DEFAULT_PROGRAM), bytes(self._program))
        hint = "install a wheel, or run from a checkout"
        raise HostError(f"this installation has no {file.name}", hint=hint)

    def _key(self, path: Path) -> str:
        return f"/{path.relative_to(self._root)}"

    def _recorded(self) -> Mapping[str, str]:
        try:
            recorded = json.loads(_read(self._root / _RECORD) or b"{}")
        except ValueError:
            return {}  # then all files count as changed by the operator
        return recorded if isinstance(recorded, dict) else {}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "run as root, or name another folder with --root"
        raise HostError(f"{path}: {error.strerror}", hint=hint) from error


def _read(path: Path) -> bytes | None:
    with _explained(path), contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        return file.read(_MAX_BYTES)
    return None


def _write(path: Path, data: bytes, mode: int) -> None:
    # Rename a complete file: readers and crashes never see half of it.
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                os.fchmod(file.fileno(), mode)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
