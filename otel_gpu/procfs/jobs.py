"""
Job and ranks of a process, from the variables that launchers set in its environment.

torchrun (torchelastic), Slurm, Open MPI and MPICH's Hydra are known. ``/proc/PID/environ`` does not
contain what a process sets after its start.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

RANK: Final = "otel_gpu.rank"
LOCAL_RANK: Final = "otel_gpu.local_rank"
WORLD_SIZE: Final = "otel_gpu.world_size"
JOB_ID: Final = "otel_gpu.job.id"
JOB_NAME: Final = "otel_gpu.job.name"

_MAX_RANK = 1 << 31
_MAX_CHARACTERS = 256


class _Launcher(NamedTuple):
    rank: str
    local_rank: str
    world_size: str


# The innermost first: torchrun runs under srun, never the reverse.
_LAUNCHERS = (
    _Launcher("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    _Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    _Launcher("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
    _Launcher("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
)
# One name for each job; the scheduler's is better than the launcher's.
_JOB_IDS = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")
_JOB_NAMES = ("SLURM_JOB_NAME",)
# torchrun's name of an unnamed run.
_NO_JOB = frozenset({"", "none"})

VARIABLES: Final = (*(name for one in _LAUNCHERS for name in one), *_JOB_IDS, *_JOB_NAMES)
"""The variables that are read from an environment."""


def describe_job(environment: Mapping[str, str]) -> Iterator[tuple[str, str | int]]:
    """Yield resource attributes of a process; a rank only with a valid world size."""
    for launcher in _LAUNCHERS:
        rank, size = (
            _number(environment.get(name)) for name in (launcher.rank, launcher.world_size)
        )
        if rank is None or size is None or rank >= size:
            continue
        yield RANK, rank
        yield WORLD_SIZE, size
        local_rank = _number(environment.get(launcher.local_rank))
        if local_rank is not None and local_rank < size:
            yield LOCAL_RANK, local_rank
        break
    for attribute, names in ((JOB_ID, _JOB_IDS), (JOB_NAME, _JOB_NAMES)):
        found = (environment.get(name, "") for name in names)
        if value := next((text for text in found if text not in _NO_JOB), ""):
            yield attribute, value[:_MAX_CHARACTERS]


def _number(text: str | None) -> int | None:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > len(str(_MAX_RANK)):
        return None
    number = int(text)
    return number if number < _MAX_RANK else None
