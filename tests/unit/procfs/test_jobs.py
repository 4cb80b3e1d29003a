"""Which process of which job a process is."""

import pytest

from otel_gpu.procfs.jobs import describe_job

TORCHRUN = {"RANK": "37", "LOCAL_RANK": "5", "WORLD_SIZE": "64", "TORCHELASTIC_RUN_ID": "none"}
SLURM = {
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "8",
    "SLURM_JOB_ID": "81234",
    "SLURM_JOB_NAME": "llama-70b",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
}
HYDRA = {"PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALRANKID": "0"}
JOB = {"otel_gpu.job.id": "81234", "otel_gpu.job.name": "llama-70b"}


def ranks(rank, local_rank, world_size):
    found = {"otel_gpu.rank": rank, "otel_gpu.world_size": world_size}
    return found if local_rank is None else found | {"otel_gpu.local_rank": local_rank}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {}),
        (TORCHRUN, ranks(37, 5, 64)),
        (TORCHRUN | {"TORCHELASTIC_RUN_ID": "r7"}, ranks(37, 5, 64) | {"otel_gpu.job.id": "r7"}),
        (SLURM, ranks(4, 0, 8) | JOB),
        # One task per node, and torchrun in each.
        (TORCHRUN | SLURM, ranks(37, 5, 64) | JOB),
        (OPEN_MPI, ranks(2, 2, 3)),
        (HYDRA, ranks(0, 0, 1)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, ranks(0, None, 1)),
    ],
)
def test_each_launcher_is_known(environment, expected):
    """The innermost one counts, and the name of the job is the scheduler's."""
    assert dict(describe_job(environment)) == expected


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "3"},
        {"RANK": "4", "WORLD_SIZE": "4"},
        {"RANK": "-1", "WORLD_SIZE": "4"},
        {"RANK": "1.0", "WORLD_SIZE": "4"},
        {"RANK": "\u0663", "WORLD_SIZE": "4"},
        {"RANK": "0", "WORLD_SIZE": "9" * 5000},
        {"RANK": "gold", "WORLD_SIZE": "4"},
    ],
)
def test_what_is_no_rank_is_left_out(environment):
    """RANK may mean anything to a program that no launcher started."""
    assert dict(describe_job(environment)) == {}


def test_a_rank_that_a_launcher_did_not_give_leaves_the_next_one_its_turn():
    """A game's RANK says nothing about Slurm's."""
    assert dict(describe_job({"RANK": "gold"} | SLURM)) == ranks(4, 0, 8) | JOB
