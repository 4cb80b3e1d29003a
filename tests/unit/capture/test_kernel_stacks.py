"""Kernel stacks as records."""

import json

import pytest

from otel_gpu import wire
from otel_gpu.capture.kernel_stacks import KernelStacks
from otel_gpu.capture.kernel_symbols import KernelSymbols

KALLSYMS = """\
ffffffff81000100 T __schedule
ffffffff81000200 T schedule
ffffffff81000300 T do_exit
ffffffff81000400 T make_task_dead
ffffffff81000500 T entry_SYSCALL_64
"""


class Programs:
    def __init__(self, stacks):
        self.stacks = stacks

    def kernel_stack(self, stack):
        return self.stacks.get(stack, [])


@pytest.fixture
def functions(tmp_path):
    (tmp_path / "kallsyms").write_text(KALLSYMS)

    def told(*addresses):
        stacks = KernelStacks(Programs({7: addresses}), KernelSymbols(tmp_path / "kallsyms"))
        (record,) = stacks.tell(7)
        assert list(stacks.tell(7)) == []
        return json.loads(record[wire.RECORD_HEADER.size :].rstrip(b"\0"))["functions"]

    return told


def test_a_caller_is_the_function_that_holds_the_call(functions):
    """
    The call that never returns is the last of do_exit, so it would return into the next function.
    """
    assert functions(0xFFFF_FFFF_8100_0210, 0xFFFF_FFFF_8100_0400, 0xFFFF_FFFF_8100_0511) == [
        "schedule",
        "do_exit",
        "entry_SYSCALL_64",
    ]


def test_the_innermost_function_may_be_at_its_first_instruction(functions):
    """There is no call before it."""
    assert functions(0xFFFF_FFFF_8100_0400) == ["make_task_dead"]


def test_what_is_above_the_scheduler_is_left_out(functions):
    """It is how we came to look."""
    assert functions(
        0xFFFF_FFFF_8100_0510, 0xFFFF_FFFF_8100_0101, 0xFFFF_FFFF_8100_0201, 0xFFFF_FFFF_8100_0301
    ) == ["schedule", "do_exit"]
