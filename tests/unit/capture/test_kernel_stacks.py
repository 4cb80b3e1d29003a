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


def test_functions_of_the_scheduler_are_left_out_wherever_they_are(tmp_path):
    """So the kernel does itself with the stack of another thread; with our own it does not."""
    (tmp_path / "kallsyms").write_text(
        "ffffffff81000000 T do_nanosleep\n"
        "ffffffff81000100 T __sched_text_start\n"
        "ffffffff81000100 t __schedule\n"
        "ffffffff81000200 T schedule\n"
        "ffffffff81000300 T schedule_timeout\n"
        "ffffffff81000400 T __sched_text_end\n"
        "ffffffff81000400 T do_futex\n"
    )
    addresses = [0xFFFF_FFFF_8100_0000 + offset for offset in (0x410, 0x110, 0x210, 0x310, 0x10)]
    stacks = KernelStacks(Programs({7: addresses}), KernelSymbols(tmp_path / "kallsyms"))

    (record,) = stacks.tell(7)

    body = json.loads(record[wire.RECORD_HEADER.size :].rstrip(b"\0"))
    assert body["functions"] == ["do_nanosleep"]
