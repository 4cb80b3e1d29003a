"""The benchmarks' peaks of memory are those of one process."""

import multiprocessing
import sys

from benchmarks.peak_memory import own_peak_mib, run_measured

MIB = 1 << 20


def test_a_process_that_a_large_one_starts_has_its_own_peak() -> None:
    """Not that of who started it, nor of one that was there before it."""
    ours = bytearray(257 * MIB)
    del ours
    large, small = (
        run_measured((sys.executable, "-c", f"len(bytearray({mib} * 1048576))")).peak_mib
        for mib in (131, 1)
    )
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        spawned = pool.apply(own_peak_mib)

    assert 131 < large < 181
    assert 1 < small < 51
    assert spawned < 181
    assert own_peak_mib() > 257
