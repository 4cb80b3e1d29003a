"""
Checks who can change the program that the service runs.

A user who can write a file of the program, or a folder above it, gets the capabilities of the
service, which can read the memory of all processes. So only root may write them.
"""

import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import otel_gpu

_ROOT_UID = 0
_WRITERS = stat.S_IWGRP | stat.S_IWOTH
# As many links as the kernel follows.
_MAX_LINKS = 40


def parts_of_program(program: Path) -> list[Path]:
    """Return the files that the service would execute: program, interpreter, package."""
    return [program, Path(sys.executable), Path(otel_gpu.__file__)]


def untrusted(paths: Iterable[Path], owner_uid: int = _ROOT_UID) -> Iterator[str]:
    """
    Yield what other users than root and the owner can change, and why.

    Checks the files, the folders above them, and links to them.
    """
    for place in dict.fromkeys(place for path in paths for place in _on_the_way(path)):
        try:
            status = place.lstat()
        except OSError as error:
            yield f"{place}: {error.strerror}"
            continue
        if status.st_uid not in {_ROOT_UID, owner_uid}:
            yield f"{place} belongs to user {status.st_uid}"
        elif not stat.S_ISLNK(status.st_mode) and _is_open(status.st_mode):
            yield f"{place} can be written by others"


def _is_open(mode: int) -> bool:
    # In a sticky folder such as /tmp, only owners can replace files.
    sticky = stat.S_ISDIR(mode) and mode & stat.S_ISVTX
    return bool(mode & _WRITERS) and not sticky


def _on_the_way(path: Path, links: int = 0) -> Iterator[Path]:
    for place in [*reversed(path.parents), path]:
        yield place
        if place.is_symlink() and links < _MAX_LINKS:
            target = place.parent / place.readlink()
            yield from _on_the_way(target, links + 1)
