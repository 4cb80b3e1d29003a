"""Kernel stacks as records."""

import json

import pytest

from otel_gpu import wire
from otel_gpu.capture.maps.kernel_stacks import KernelStacks, without_kernel_stack
from otel_gpu.capture.maps.kernel_symbols import KernelSymbols
from tests.synthetic import kernel_record

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
        (record,) = stacks.describe(7)
        assert list(stacks.describe(7)) == []
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

    (record,) = stacks.describe(7)

    body = json.loads(record[wire.RECORD_HEADER.size :].rstrip(b"\0"))
    assert body["functions"] == ["do_nanosleep"]


@pytest.fixture
def ticks(tmp_path):
    (tmp_path / "kallsyms").write_text(KALLSYMS)
    return KernelStacks(Programs({}), KernelSymbols(tmp_path / "kallsyms"))


def tick(*addresses):
    """A sample as it is in the ring, with the kernel stack behind it."""
    words = [*addresses] + [0] * (wire.MAX_STACK_FRAMES - len(addresses))
    sample = kernel_record(wire.RECORD_CPU_SAMPLE, pid=4, tid=5, weight_ns=6, comm="worker")
    return sample + wire.KERNEL_STACK.pack(*words)


def functions_in(record):
    return json.loads(record[wire.RECORD_HEADER.size :].rstrip(b"\0"))["functions"]


def test_a_tick_in_the_kernel_gets_an_id_of_its_functions(ticks):
    """All of them, the scheduler's too, and the sample is otherwise as it was."""
    stack, sample = ticks.place(tick(0xFFFF_FFFF_8100_0110, 0xFFFF_FFFF_8100_0511))

    assert functions_in(stack) == ["__schedule", "entry_SYSCALL_64"]
    fields = wire.CPU_SAMPLE_RECORD.named(sample)
    assert len(sample) == fields["size"] == wire.CPU_SAMPLE_RECORD.size
    assert fields["kernel_stack"] >= 1 << 30
    blank = wire.CPU_SAMPLE_RECORD.named(tick())
    assert fields == blank | {"kernel_stack": fields["kernel_stack"]}


def test_ticks_at_other_instructions_of_the_same_functions_share_an_id(ticks):
    """It is said once what that is; another way to the same place is another stack."""
    _, first = ticks.place(tick(0xFFFF_FFFF_8100_0110, 0xFFFF_FFFF_8100_0511))
    (second,) = ticks.place(tick(0xFFFF_FFFF_8100_0118, 0xFFFF_FFFF_8100_0511))
    (again,) = ticks.place(tick(0xFFFF_FFFF_8100_0118, 0xFFFF_FFFF_8100_0511))
    _, other = ticks.place(tick(0xFFFF_FFFF_8100_0118, 0xFFFF_FFFF_8100_0311))

    ids = [wire.CPU_SAMPLE_RECORD.named(one)["kernel_stack"] for one in (first, again, other)]
    assert first == second == again
    assert ids[0] != ids[2]


def test_a_tick_in_user_space_has_no_kernel_stack(ticks):
    """And neither has one whose stack could not be read."""
    user = kernel_record(wire.RECORD_CPU_SAMPLE, pid=4)

    for sample in (user, user + bytes(wire.KERNEL_STACK.size)):
        (placed,) = ticks.place(sample)
        assert placed == user


def test_a_sample_whose_stack_cannot_be_named_goes_without(ticks):
    """Other records stay as they are."""
    user = kernel_record(wire.RECORD_CPU_SAMPLE, pid=4, tid=5, weight_ns=6, comm="worker")
    call = kernel_record(wire.RECORD_CUDA_CALL, pid=4)

    assert without_kernel_stack(tick(0xFFFF_FFFF_8100_0110)) == user
    assert without_kernel_stack(call) == call
