"""
Why a thread was blocked, from real kernel stacks.

The stacks of ``CAPTURED`` were captured with ``otel-gpu run --record`` on Linux 6.18
(x86_64) from a program that did the one thing that the case is named after. Those of
``KNOWN`` are of situations that cannot be had on such a machine, after the sources of
the kernel and of the NVIDIA driver.
"""

import re
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu import wire
from otel_gpu.enrich.waits import kernel_reasons
from otel_gpu.enrich.waits.kernel_reasons import RULES, SYSTEM_CALLS, find_reason
from otel_gpu.enrich.waits.reasons import REASONS, WaitReason

FAULT = wire.STALL_FAULT
ENTRY = "do_syscall_64 entry_SYSCALL_64_after_hwframe"
SIGNAL = "get_signal arch_do_signal_or_restart"

# Name, reason, number of the system call, stack without its outermost two.
CAPTURED = [
    (
        "mutex",
        "lock",
        202,
        "schedule futex_do_wait __futex_wait futex_wait do_futex __x64_sys_futex",
    ),
    ("flock", "lock", 73, "schedule locks_lock_inode_wait __do_sys_flock"),
    ("fcntl", "lock", 72, "schedule fcntl_setlk do_fcntl __x64_sys_fcntl"),
    ("pipe_read", "ipc", 0, "schedule anon_pipe_read vfs_read ksys_read"),
    ("pipe_write", "ipc", 1, "schedule anon_pipe_write vfs_write ksys_write"),
    (
        "epoll_wait",
        "ipc",
        232,
        "schedule schedule_hrtimeout_range_clock do_epoll_wait __x64_sys_epoll_wait",
    ),
    (
        "poll",
        "ipc",
        7,
        (
            "schedule schedule_hrtimeout_range_clock poll_schedule_timeout.constprop.0 do_sys_poll "
            "__x64_sys_poll"
        ),
    ),
    (
        "select",
        "ipc",
        270,
        (
            "schedule schedule_hrtimeout_range_clock poll_schedule_timeout.constprop.0 do_select "
            "core_sys_select do_pselect.constprop.0 __x64_sys_pselect6"
        ),
    ),
    (
        "unix_socket",
        "ipc",
        45,
        (
            "schedule schedule_timeout unix_stream_read_generic unix_stream_recvmsg sock_recvmsg "
            "__sys_recvfrom __x64_sys_recvfrom"
        ),
    ),
    (
        "unix_datagram",
        "ipc",
        45,
        (
            "schedule schedule_timeout __skb_wait_for_more_packets __unix_dgram_recvmsg sock_recvmsg "
            "__sys_recvfrom __x64_sys_recvfrom"
        ),
    ),
    (
        "tcp_recv",
        "ipc",
        45,
        (
            "schedule schedule_timeout wait_woken sk_wait_data tcp_recvmsg_locked tcp_recvmsg "
            "sock_recvmsg __sys_recvfrom __x64_sys_recvfrom"
        ),
    ),
    (
        "tcp_send",
        "ipc",
        44,
        (
            "schedule schedule_timeout wait_woken sk_stream_wait_memory tcp_sendmsg_locked tcp_sendmsg "
            "__sys_sendto __x64_sys_sendto"
        ),
    ),
    (
        "tcp_accept",
        "ipc",
        43,
        (
            "schedule schedule_timeout inet_csk_accept inet_accept do_accept __sys_accept4 "
            "__x64_sys_accept"
        ),
    ),
    (
        "udp_recv",
        "ipc",
        45,
        (
            "schedule schedule_timeout __skb_wait_for_more_packets __skb_recv_udp udp_recvmsg "
            "sock_recvmsg __sys_recvfrom __x64_sys_recvfrom"
        ),
    ),
    ("eventfd", "ipc", 0, "schedule do_wait_intr_irq eventfd_read vfs_read ksys_read"),
    ("message_queue", "ipc", 70, "schedule do_msgrcv"),
    (
        "semaphore",
        "ipc",
        220,
        "schedule schedule_hrtimeout_range_clock __do_semtimedop do_semtimedop __x64_sys_semtimedop",
    ),
    (
        "mq_timedreceive",
        "ipc",
        243,
        (
            "schedule schedule_hrtimeout_range_clock wq_sleep do_mq_timedreceive "
            "__x64_sys_mq_timedreceive"
        ),
    ),
    ("pause", "ipc", 34, "schedule __x64_sys_pause"),
    (
        "sigwait",
        "ipc",
        128,
        "schedule schedule_hrtimeout_range_clock do_sigtimedwait.isra.0 __x64_sys_rt_sigtimedwait",
    ),
    (
        "nanosleep",
        "sleep",
        230,
        "schedule do_nanosleep hrtimer_nanosleep common_nsleep __x64_sys_clock_nanosleep",
    ),
    ("nanosleep_again", "sleep", 219, "schedule do_nanosleep hrtimer_nanosleep_restart"),
    ("wait4", "child_wait", 61, "schedule do_wait kernel_wait4"),
    ("waitid", "child_wait", 247, "schedule do_wait kernel_waitid __do_sys_waitid"),
    (
        "vfork",
        "child_wait",
        58,
        (
            "schedule schedule_timeout __wait_for_common wait_for_completion_state kernel_clone "
            "__x64_sys_vfork"
        ),
    ),
    ("stopped_in_call", "stopped", 230, f"schedule do_signal_stop {SIGNAL} exit_to_user_mode_loop"),
    ("traced", "stopped", 234, f"schedule ptrace_stop {SIGNAL} exit_to_user_mode_loop"),
    (
        "fsync_data",
        "io",
        74,
        (
            "schedule io_schedule folio_wait_bit folio_wait_writeback __filemap_fdatawait_range "
            "file_write_and_wait_range generic_buffers_fsync_noflush "
            "ext4_fsync_nojournal.constprop.0 ext4_sync_file do_fsync __x64_sys_fsync"
        ),
    ),
    (
        "fsync_inode",
        "io",
        74,
        (
            "schedule io_schedule bit_wait_io __wait_on_bit out_of_line_wait_on_bit "
            "__sync_dirty_buffer ext4_write_inode __writeback_single_inode writeback_single_inode "
            "sync_inode_metadata generic_buffers_fsync_noflush ext4_fsync_nojournal.constprop.0 "
            "ext4_sync_file do_fsync __x64_sys_fsync"
        ),
    ),
    (
        "flush",
        "io",
        75,
        (
            "schedule schedule_timeout io_schedule_timeout wait_for_completion_io_timeout "
            "submit_bio_wait blkdev_issue_flush ext4_sync_file do_fsync __x64_sys_fdatasync"
        ),
    ),
    (
        "direct_read",
        "io",
        0,
        (
            "schedule schedule_timeout io_schedule_timeout __iomap_dio_rw iomap_dio_rw "
            "ext4_file_read_iter vfs_read ksys_read"
        ),
    ),
    (
        "cold_read",
        "io",
        17,
        (
            "schedule io_schedule folio_wait_bit_common filemap_get_pages filemap_read vfs_read "
            "__x64_sys_pread64"
        ),
    ),
    (
        "folder",
        "io",
        87,
        (
            "schedule schedule_preempt_disabled rwsem_down_write_slowpath down_write do_unlinkat "
            "__x64_sys_unlink"
        ),
    ),
    (
        "create",
        "io",
        257,
        (
            "schedule schedule_preempt_disabled rwsem_down_write_slowpath down_write path_openat "
            "do_filp_open do_sys_openat2 __x64_sys_openat"
        ),
    ),
    (
        "same_file",
        "io",
        18,
        (
            "schedule schedule_preempt_disabled rwsem_down_write_slowpath down_write "
            "ext4_buffered_write_iter vfs_write __x64_sys_pwrite64"
        ),
    ),
    (
        "mmap",
        "mmap_lock",
        9,
        (
            "schedule schedule_preempt_disabled rwsem_down_write_slowpath down_write_killable "
            "vm_mmap_pgoff"
        ),
    ),
    (
        "change_of_cgroup",
        "unknown",
        1,
        (
            "schedule schedule_timeout wait_for_completion synchronize_rcu_normal rcu_sync_enter "
            "percpu_down_write cgroup_procs_write_start __cgroup1_procs_write.isra.0 "
            "kernfs_fop_write_iter vfs_write ksys_write"
        ),
    ),
]
# Not in a system call: name, reason, stack.
CAPTURED_FAULTS = [
    (
        "cold_page",
        "page_fault",
        (
            "schedule io_schedule folio_wait_bit_common filemap_read_folio filemap_fault __do_fault "
            "do_fault __handle_mm_fault handle_mm_fault exc_page_fault asm_exc_page_fault"
        ),
    ),
    (
        "fault_while_mapping",
        "mmap_lock",
        (
            "schedule schedule_preempt_disabled rwsem_down_read_slowpath down_read_killable "
            "lock_mm_and_find_vma exc_page_fault asm_exc_page_fault"
        ),
    ),
    (
        "memory_limit",
        "reclaim",
        (
            "schedule schedule_timeout reclaim_throttle shrink_lruvec shrink_node do_try_to_free_pages "
            "try_to_free_mem_cgroup_pages try_charge_memcg charge_memcg __mem_cgroup_charge "
            "do_anonymous_page __handle_mm_fault handle_mm_fault exc_page_fault asm_exc_page_fault"
        ),
    ),
    (
        "stopped_running",
        "stopped",
        (
            f"schedule do_signal_stop {SIGNAL} irqentry_exit_to_user_mode "
            "asm_sysvec_apic_timer_interrupt"
        ),
    ),
]
# Name, reason, number of the system call, flags, stack.
KNOWN = [
    (
        "driver_semaphore",
        "driver",
        16,
        0,
        (
            "schedule schedule_timeout __down_common down_timeout os_acquire_semaphore _nv012345rm "
            "rm_ioctl nvidia_ioctl nvidia_unlocked_ioctl __x64_sys_ioctl"
        ),
    ),
    ("driver_sleep", "driver", 16, 0, "schedule schedule_timeout msleep uvm_spin_loop uvm_ioctl"),
    (
        "pinning",
        "mmap_lock",
        16,
        0,
        "schedule rwsem_down_read_slowpath down_read os_lock_user_pages nvidia_ioctl",
    ),
    (
        "fork_beside_a_fault",
        "mmap_lock",
        56,
        0,
        "schedule rwsem_down_write_slowpath down_write_killable dup_mmap copy_process kernel_clone",
    ),
    ("fork_elsewhere", "unknown", 56, 0, "schedule percpu_rwsem_wait copy_process kernel_clone"),
    (
        "file_map_in_a_fault",
        "page_fault",
        -1,
        FAULT,
        (
            "schedule rwsem_down_read_slowpath down_read ext4_map_blocks ext4_mpage_readpages "
            "read_pages page_cache_ra_unbounded filemap_fault __do_fault __handle_mm_fault "
            "handle_mm_fault exc_page_fault"
        ),
    ),
    (
        "deep_stack_that_is_cut",
        "page_fault",
        -1,
        FAULT,
        (
            "schedule io_schedule bit_wait_io __wait_on_bit out_of_line_wait_on_bit ext4_read_bh "
            "ext4_find_extent"
        ),
    ),
    (
        "read_into_memory_that_is_swapped_out",
        "page_fault",
        0,
        0,
        (
            "schedule io_schedule folio_wait_bit_common do_swap_page __handle_mm_fault handle_mm_fault "
            "exc_page_fault asm_exc_page_fault _copy_to_iter filemap_read vfs_read ksys_read"
        ),
    ),
    (
        "writeback_to_free_memory",
        "reclaim",
        0,
        0,
        (
            "schedule io_schedule folio_wait_bit_common folio_wait_writeback shrink_folio_list "
            "shrink_lruvec shrink_node do_try_to_free_pages try_to_free_mem_cgroup_pages "
            "try_charge_memcg filemap_add_folio filemap_read vfs_read ksys_read"
        ),
    ),
    (
        "journal",
        "io",
        257,
        0,
        (
            "schedule wait_transaction_locked add_transaction_credits start_this_handle "
            "jbd2__journal_start __ext4_journal_start_sb ext4_create path_openat"
        ),
    ),
    ("journal_commit", "io", 74, 0, "schedule jbd2_log_wait_commit ext4_fsync_journal do_fsync"),
    ("io_uring", "io", 426, 0, "schedule io_cqring_wait __do_sys_io_uring_enter"),
    ("nfs", "io", 0, 0, "schedule rpc_wait_bit_killable __wait_on_bit nfs4_call_sync_sequence"),
    (
        "throttled_writer",
        "io",
        1,
        0,
        "schedule schedule_timeout io_schedule_timeout balance_dirty_pages",
    ),
    ("stopped_as_said", "stopped", 0, 0, "schedule get_signal arch_do_signal_or_restart"),
    ("frozen", "frozen", 0, 0, "schedule do_freezer_trap get_signal arch_do_signal_or_restart"),
    ("frozen_by_version_1", "frozen", 0, 0, "schedule __refrigerator get_signal"),
    ("end_of_a_process", "unknown", -1, FAULT, "schedule do_exit do_group_exit get_signal"),
    ("timerfd", "sleep", 0, 0, "schedule timerfd_read_iter vfs_read ksys_read"),
    ("mutex_of_a_pipe", "ipc", 0, 0, "schedule __mutex_lock.constprop.0 anon_pipe_read vfs_read"),
    ("timeout_alone", "unknown", 16, 0, "schedule schedule_timeout __x64_sys_ioctl"),
]

CASES = [
    *((name, reason, call, 0, f"{stack} {ENTRY}") for name, reason, call, stack in CAPTURED),
    *((name, reason, -1, FAULT, stack) for name, reason, stack in CAPTURED_FAULTS),
    *KNOWN,
]


@pytest.mark.parametrize(
    ("reason", "system_call", "flags", "stack"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_a_stack_has_its_reason(reason, system_call, flags, stack):
    """What a thread did is what it is said to have waited for."""
    assert find_reason(stack.split(), system_call, flags) == reason


def test_every_row_has_a_case():
    """No row of the table is there without a stack that only it explains."""
    patterns = list(kernel_reasons._PATTERNS)
    for row in range(len(RULES)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernel_reasons, "_PATTERNS", patterns[:row] + patterns[row + 1 :])
            patch.setattr(kernel_reasons, "_from_stack", kernel_reasons._from_stack.__wrapped__)
            changed = [
                name
                for name, reason, _, flags, stack in CASES
                # Nothing but the stack is to speak for it.
                if find_reason(stack.split(), -1, flags) != reason
            ]
        assert changed, RULES[row]


def test_rows_name_reasons_that_are_known():
    """A row or system call gives no reason that explanations have never heard of."""
    named = {rule.reason for rule in RULES} | {call.reason for call in SYSTEM_CALLS}

    assert (
        named | {WaitReason.GIL, WaitReason.QUEUE, WaitReason.NETWORK, WaitReason.CAPTURE}
        == REASONS
    )


@pytest.mark.parametrize(
    ("functions", "system_call", "flags"),
    [
        ([], -1, 0),
        ([], -1, FAULT),  # a fault, or a stop: without a stack nobody can say
        ([], 0, 0),  # read(2) of a file, or of a pipe
        ([], 16, 0),
        ([], 1 << 30, 0),
        (["schedule"], -1, 0),
        (["0xffffffff81000000", "0xffffffff81000010"], -1, 0),
        (["my_do_nanosleep", "futex"], -1, 0),
        (["rwsem_down_read_slowpath", "down_read"], -1, 0),
        (["down_read", "somewhere", "asm_exc_divide_error"], -1, 0),
    ],
)
def test_unknown_stays_unknown(functions, system_call, flags):
    """What neither the stack nor the system call tells is not guessed."""
    assert find_reason(functions, system_call, flags) == "unknown"


def test_a_function_is_known_by_its_whole_name():
    """A name that only begins like a known one is another; a compiler's suffix is not."""
    assert find_reason(["do_wait"], -1, 0) == "child_wait"
    assert find_reason(["do_wait.part.0"], -1, 0) == "child_wait"
    assert find_reason(["do_wait_intr_irq"], -1, 0) == "unknown"


FUTEX = ["schedule", "futex_do_wait", "__futex_wait", "futex_wait", "do_futex", "__x64_sys_futex"]


@pytest.mark.parametrize(
    ("functions", "reason"),
    [
        (FUTEX, "gil"),
        ([], "gil"),
        (["0xffffffff81000000"], "gil"),
        (["schedule", "do_signal_stop", "get_signal"], "stopped"),
        (["rwsem_down_read_slowpath", "down_read", "__get_user_pages"], "mmap_lock"),
    ],
)
def test_the_address_of_the_gil_tells_it_from_other_locks(functions, reason):
    """The flag wins over the futex, and over nothing else that goes on in that call."""
    assert find_reason(functions, 202, wire.STALL_GIL) == reason


def test_who_was_frozen_was_stopped_by_its_cgroup_and_by_no_signal():
    """The freezer of version 2 is a part of get_signal, which a signal stops in as well."""
    stack = ["schedule", "get_signal", "arch_do_signal_or_restart"]

    assert find_reason(stack, -1, 0) == "stopped"
    assert find_reason(stack, -1, wire.STALL_FROZEN) == "frozen"
    assert find_reason(["schedule", "do_freezer_trap", "get_signal"], -1, 0) == "frozen"
    assert find_reason(["schedule", "__refrigerator", "get_signal"], -1, 0) == "frozen"
    # It is to be frozen, and waits for a lock yet; and it was stopped by a signal before.
    assert find_reason(FUTEX, 202, wire.STALL_FROZEN) == "lock"
    assert find_reason(stack, -1, wire.STALL_FROZEN | wire.STALL_STOPPED) == "stopped"


def test_who_was_stopped_was_stopped_whatever_its_stack_says():
    """Its state says so at the switch; its stack is looked at when it goes on, if that is seen."""
    assert find_reason([], 228, wire.STALL_STOPPED) == "stopped"
    assert find_reason(FUTEX, 202, wire.STALL_STOPPED | wire.STALL_GIL) == "stopped"
    assert find_reason([], 228, wire.STALL_STOPPED | wire.STALL_AGENT) == "capture"
    assert find_reason([], -1, wire.STALL_FAULT) == "unknown"


@pytest.mark.parametrize("call", SYSTEM_CALLS, ids=lambda call: call.name)
def test_a_system_call_stands_in_for_a_stack(call):
    """Without a stack the number decides, on either machine; elsewhere it says nothing."""
    for machine in ("x86_64", "aarch64"):
        number = getattr(call, machine)
        if number:
            assert find_reason([], number, 0, machine) == call.reason
            assert find_reason(["0xffffffff81000000"], number, 0, machine) == call.reason
            assert find_reason([], number, 0, "riscv64") == "unknown"


def test_a_stack_says_more_than_a_system_call():
    """A page fault inside a system call that could wait for something else is that."""
    assert find_reason(["folio_wait_bit_common", "filemap_fault"], 202, 0) == "page_fault"


# Where distributions put the kernel's numbers.
HEADERS = {
    "x86_64": [
        Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        Path("/usr/include/asm/unistd_64.h"),
    ],
    "aarch64": [Path("/usr/include/asm-generic/unistd.h")],
}


@pytest.mark.parametrize("machine", HEADERS)
def test_the_numbers_are_the_kernel_s(machine):
    """Every number is the one in the kernel's own header, and so is every lack of one."""
    header = next((path for path in HEADERS[machine] if path.exists()), None)
    if header is None:
        pytest.skip(f"the kernel's headers for {machine} are not installed")
    lines = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text(), re.MULTILINE)
    numbers = {name: int(number) for name, number in lines}

    assert {call.name: getattr(call, machine) for call in SYSTEM_CALLS} == {
        call.name: numbers.get(call.name, 0) for call in SYSTEM_CALLS
    }


NAMES = sorted(set(re.findall(r"\w{4,}", " ".join(rule.functions for rule in RULES))))
FRAMES = st.sampled_from(NAMES) | st.text(string.ascii_lowercase + "_.0()|*\n", max_size=20)


@given(
    st.lists(FRAMES | st.text(max_size=10), max_size=24),
    st.integers(-1, 500),
    st.integers(0, 255),
    st.sampled_from(["x86_64", "aarch64", "", "riscv64"]),
)
def test_any_stack_has_a_known_reason(functions, system_call, flags, machine):
    """Whatever a recording says, what comes out is a reason that has a name."""
    assert find_reason(functions, system_call, flags, machine) in REASONS


def test_a_stop_by_the_agent_is_no_stop_of_the_program():
    """The kernel side marks who let it go on; any other stop is by a signal or a debugger."""
    stack = ["schedule", "do_signal_stop", "get_signal"]

    assert find_reason(stack, -1, wire.STALL_FAULT) == "stopped"
    assert find_reason(stack, -1, wire.STALL_FAULT | wire.STALL_AGENT) == "capture"
    # What the agent writes to wakes others, too.
    assert find_reason(["schedule", "anon_pipe_read"], -1, wire.STALL_AGENT) == "ipc"
