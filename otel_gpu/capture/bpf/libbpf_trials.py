"""Features of this kernel that libbpf tests by trying them: program types, maps, helpers."""

from collections.abc import Mapping
from typing import NamedTuple

from otel_gpu.capture.bpf.libbpf_file import open_libbpf
from otel_gpu.errors import HostError

# The kernel's version does not decide: distributions port newer BPF to older kernels, as RHEL 9 does
# to 5.14. The newest helper is bpf_get_attach_cookie(), by which one program serves every probed
# symbol. Linux commit 7adfc6c9b315 ("bpf: Add bpf_get_attach_cookie() BPF helper to access bpf_cookie
# value") added it in v5.15; the same series added links of uprobes.
HELPERS: Mapping[int, str] = {
    112: "bpf_probe_read_user",
    113: "bpf_probe_read_kernel",
    114: "bpf_probe_read_user_str",
    115: "bpf_probe_read_kernel_str",
    117: "bpf_send_signal_thread",
    118: "bpf_jiffies64",
    130: "bpf_ringbuf_output",
    131: "bpf_ringbuf_reserve",
    132: "bpf_ringbuf_submit",
    134: "bpf_ringbuf_query",
    141: "bpf_get_task_stack",
    158: "bpf_get_current_task_btf",
    174: "bpf_get_attach_cookie",
    175: "bpf_task_pt_regs",
}
"""Helpers that the programs call, added since Linux 5.5, by number in ``enum bpf_func_id``."""

_PROG_TYPE_KPROBE = 2  # uprobes are programs of this type
_MAP_TYPE_RINGBUF = 27


class LibbpfReport(NamedTuple):
    """
    The loaded libbpf, and what the kernel lets it load.

    ``lacking``: the HELPERS that the kernel does not have; empty where programs cannot be loaded.
    """

    version: tuple[int, int]
    can_load_programs: bool
    can_make_ring_buffers: bool
    path: str = ""
    passed_over: str = ""
    lacking: tuple[str, ...] = ()


def query_libbpf() -> LibbpfReport | str:
    """Load libbpf and let it try what a capture needs; return the reason if it cannot be loaded."""
    try:
        found = open_libbpf()
    except HostError as error:
        return str(error)
    library = found.library
    # Refused attempts are results here, so libbpf prints nothing about them.
    library.libbpf_set_print(None)
    programs = library.libbpf_probe_bpf_prog_type(_PROG_TYPE_KPROBE, None) == 1
    ring_buffers = library.libbpf_probe_bpf_map_type(_MAP_TYPE_RINGBUF, None) == 1
    # libbpf returns 1 or an error for helpers that it cannot try; only 0 means missing.
    lacking = tuple(
        name
        for number, name in HELPERS.items()
        if programs and library.libbpf_probe_bpf_helper(_PROG_TYPE_KPROBE, number, None) == 0
    )
    return LibbpfReport(
        version=found.version,
        can_load_programs=programs,
        can_make_ring_buffers=ring_buffers,
        path=found.path,
        passed_over=found.passed_over,
        lacking=lacking,
    )
