"""Getting interpreters, and why one cannot be had here."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

_DEADLINE_S = 300


class Missing(Exception):  # noqa: N818 -- a reason to skip, not a fault
    """What the host lacks, in words that end a line of a test report."""


def run(
    command: Sequence[str | Path], env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """
    Run what gets an interpreter, however it ends.

    Raises:
        Missing: It takes too long.
    """
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            check=False,
            cwd="/",
            env=env,
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"{command[0]} took more than {_DEADLINE_S} s") from None
