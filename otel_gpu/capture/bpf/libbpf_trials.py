"""What libbpf finds out about this kernel by trying: programs, maps, and what programs call."""

from collections.abc import Mapping
from typing import NamedTuple

from otel_gpu.capture.bpf.libbpf_file import open_libbpf
from otel_gpu.errors import HostError

# A version says little: distributions bring newer BPF to older kernels, as RHEL 9 does to 5.14.
# The youngest of these is bpf_get_attach_cookie(), by which one program serves every probed symbol.
# It came with Linux kernel commit 7adfc6c9b315 ("bpf: Add bpf_get_attach_cookie() BPF helper to
# access bpf_cookie value") (in v5.15), and links of uprobes in the same series.
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
"""What the programs call of the kernel, by its number in ``enum bpf_func_id``, since Linux 5.5."""

_PROG_TYPE_KPROBE = 2  # uprobes are programs of this type
_MAP_TYPE_RINGBUF = 27


class LibbpfReport(NamedTuple):
    """
    What the loaded libbpf says: its version, and what the kernel let it load; whose it is.

    ``lacking`` are the names of HELPERS that the kernel does not know; empty, where nothing could be tried.
    """

    version: tuple[int, int]
    can_load_programs: bool
    can_make_ring_buffers: bool
    path: str = ""
    passed_over: str = ""
    lacking: tuple[str, ...] = ()


def query_libbpf() -> LibbpfReport | str:
    """Load libbpf and let it try what a capture needs; a text says why it cannot be."""
    try:
        found = open_libbpf()
    except HostError as error:
        return str(error)
    library = found.library
    # What libbpf would print about refused attempts is said by the finding.
    library.libbpf_set_print(None)
    programs = library.libbpf_probe_bpf_prog_type(_PROG_TYPE_KPROBE, None) == 1
    ring_buffers = library.libbpf_probe_bpf_map_type(_MAP_TYPE_RINGBUF, None) == 1
    # Of what it cannot try it says that it is there.
    lacking = tuple(
        name
        for number, name in HELPERS.items()
        if programs and library.libbpf_probe_bpf_helper(_PROG_TYPE_KPROBE, number, None) == 0
    )
    return LibbpfReport(
        found.version, programs, ring_buffers, found.path, found.passed_over, lacking
    )
