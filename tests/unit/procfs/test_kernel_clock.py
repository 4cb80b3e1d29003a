"""The kernel's clocks, read in a time namespace and outside of one."""

import time

import pytest

from otel_gpu.procfs import kernel_clock
from otel_gpu.procfs.kernel_clock import boot_ns, ktime_ns, shift_ns


@pytest.fixture(autouse=True)
def forget():
    shift_ns.cache_clear()
    yield
    shift_ns.cache_clear()


@pytest.mark.parametrize(
    ("text", "monotonic_ns", "boot_time_ns"),
    [
        (b"monotonic           0         0\nboottime            0         0\n", 0, 0),
        (
            b"monotonic     -86400         5\nboottime        3600 999999999\n",
            -86_399_999_999_995,
            3_600_999_999_999,
        ),
        # Before Linux 5.6.
        (b"", 0, 0),
    ],
)
def test_clocks_are_taken_back_by_the_shift_of_the_namespace(
    monkeypatch, text, monotonic_ns, boot_time_ns
):
    monkeypatch.setattr(kernel_clock, "read_file", lambda _path, _limit: text)

    assert abs(time.monotonic_ns() - ktime_ns() - monotonic_ns) < 10**9
    assert abs(time.clock_gettime_ns(time.CLOCK_BOOTTIME) - boot_ns() - boot_time_ns) < 10**9
