"""
What this host allows: every requirement of a capture, checked one by one.

A check looks at one thing and returns one finding. Checks change nothing, and none
raises for what it finds. ``visibility.py`` has the checks about observed processes.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import otel_gpu
from otel_gpu.capture.bcc.kernel_headers import find_bcc, find_headers, install_hint
from otel_gpu.capture.libbpf_file import MINIMUM_VERSION, open_libbpf
from otel_gpu.capture.loaders import choose_loader
from otel_gpu.checks import Finding, missing, ok, warning
from otel_gpu.errors import HostError
from otel_gpu.reachability import check_endpoints

# bpf_get_attach_cookie(), by which one program serves every probed symbol, came with
# Linux kernel commit 7adfc6c9b315 ("bpf: Add bpf_get_attach_cookie() BPF helper to
# access bpf_cookie value") (in v5.15).
OLDEST_KERNEL = (5, 15)

# From include/uapi/linux/capability.h.
_CAPABILITIES = {"DAC_READ_SEARCH": 2, "SYS_PTRACE": 19, "SYS_ADMIN": 21, "PERFMON": 38, "BPF": 39}
# Before Linux kernel commit 41edc1b0c1ea ("bpf: rework memory accounting") (in v5.11) maps
# counted as locked memory; OLDEST_KERNEL is past that, so SYS_RESOURCE is not needed.
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO
_PROG_TYPE_KPROBE = 2  # uprobes are programs of this type
_MAP_TYPE_RINGBUF = 27


class Libbpf(NamedTuple):
    """What the loaded libbpf says: its version, and what the kernel let it load; whose it is."""

    version: tuple[int, int]
    can_load_programs: bool
    can_make_ring_buffers: bool
    path: str = ""
    passed_over: str = ""


@dataclass(frozen=True, kw_only=True)
class Host:
    """The machine as the checks see it; tests give one of their own."""

    release: str
    machine: str
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    objects: Path = Path(otel_gpu.__file__).parent / "_bpf"
    root: Path = Path("/")


def examine_host(
    host: Host,
    environ: Mapping[str, str],
    *,
    load_libbpf: Callable[[], Libbpf | str] | None = None,
) -> Iterator[Finding]:
    """Check everything that a capture started now would need, in that order."""
    yield check_kernel(host)
    yield check_btf(host)
    yield check_capabilities(host)
    yield check_lockdown(host)
    yield check_perf_event_paranoid(host)
    yield check_unprivileged_bpf(host)
    yield check_uprobes(host)
    yield check_libbpf((load_libbpf or query_libbpf)())
    yield check_object(host)
    yield check_pid_namespace(host)
    yield check_tracefs(host)
    yield check_bpf_stats(host)
    yield check_protobuf()
    yield from check_endpoints(environ)


def check_kernel(host: Host) -> Finding:
    """The kernel is new enough."""
    needed = ".".join(map(str, OLDEST_KERNEL))
    if (version := _version_of(host.release)) is None:
        return warning("kernel", f"{host.release}: not a version number that is known")
    if version < OLDEST_KERNEL:
        return missing(
            "kernel",
            f"Linux {host.release}, but {needed} is the oldest that works",
            "update the kernel; a recording made elsewhere can be replayed here",
        )
    return ok("kernel", f"Linux {host.release} on {host.machine}")


def check_btf(host: Host) -> Finding:
    """The kernel describes its types, so that one object fits every kernel."""
    path = _btf(host)
    if path.exists():
        return ok("btf", str(path))
    return warning(
        "btf",
        f"there is no {path}: the kernel's headers have to stand in for it",
        "kernels built with CONFIG_DEBUG_INFO_BTF=y, as all large distributions' are, need none",
    )


def check_loader(host: Host, wanted: str, *, find: Callable[[], str | None] = find_bcc) -> Finding:
    """The programs can be fitted to this kernel, by the loader that a capture would take."""
    if choose_loader(wanted, _btf(host)) == "libbpf":
        if _btf(host).exists():
            return ok("loader", "libbpf; the kernel describes its types")
        return missing(
            "loader",
            "libbpf is asked for, and the kernel does not describe its types",
            "set capture.loader to auto or bcc",
        )
    python, headers = find(), find_headers(host.release, host.root)
    if python and headers:
        return ok("loader", f"bcc; BCC of {python}, kernel headers in {headers}")
    lacking = [
        *([] if python else ["BCC"]),
        *([] if headers else [f"the headers of kernel {host.release}"]),
    ]
    return missing(
        "loader",
        f"bcc, without {' and without '.join(lacking)}",
        install_hint(
            host.release,
            bcc=not python,
            headers=not headers,
            os_release=host.root / "etc" / "os-release",
        ),
    )


def check_capabilities(host: Host) -> Finding:
    """The agent may load programs, attach them and look into other processes."""
    held = capabilities(host)
    if held is None:
        return warning("capabilities", "/proc/self/status cannot be read")
    if not _is_initial_user_namespace(host):
        return missing(
            "capabilities",
            "this is a user namespace, whose capabilities the kernel does not accept for BPF",
            "run in the initial user namespace, such as a container without user remapping",
        )
    needed = [] if "SYS_ADMIN" in held else ["BPF", "PERFMON"]
    if lacking := [f"CAP_{name}" for name in needed if name not in held]:
        return missing(
            "capabilities",
            "without " + ", ".join(lacking),
            "run as root, or give the agent CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and "
            "CAP_DAC_READ_SEARCH",
        )
    if lacking := [f"CAP_{n}" for n in ("SYS_PTRACE", "DAC_READ_SEARCH") if n not in held]:
        return warning(
            "capabilities",
            "without " + ", ".join(lacking) + ": only this user's processes can be looked into",
            "run as root, or add these capabilities",
        )
    return ok("capabilities", ", ".join(f"CAP_{name}" for name in sorted(held)))


def check_lockdown(host: Host) -> Finding:
    """The kernel's lockdown leaves BPF programs the reading of memory."""
    path = host.sys / "kernel" / "security" / "lockdown"
    text = _read(path)
    if text is None:
        return ok("lockdown", "this kernel has no lockdown")
    match = re.search(r"\[(\w+)\]", text)
    mode = match[1] if match else text
    if mode == "confidentiality":
        return missing(
            "lockdown",
            "confidentiality: BPF programs may not read memory",
            "boot with lockdown=integrity or lockdown=none",
        )
    return ok("lockdown", mode)


def check_perf_event_paranoid(host: Host) -> Finding:
    """The level at which the kernel asks for privileges; CAP_PERFMON passes all."""
    level = _read(host.proc / "sys" / "kernel" / "perf_event_paranoid")
    if level is None:
        return missing(
            "perf_event_paranoid",
            "the kernel has no perf events, through which uprobes attach",
            "use a kernel built with CONFIG_PERF_EVENTS=y",
        )
    held = capabilities(host) or frozenset()
    if held & {"PERFMON", "SYS_ADMIN"}:
        return ok("perf_event_paranoid", f"{level}; no obstacle with CAP_PERFMON")
    return missing(
        "perf_event_paranoid",
        f"{level}, and without CAP_PERFMON uprobes are refused at every level",
        "run as root, or give the agent CAP_PERFMON",
    )


def check_unprivileged_bpf(host: Host) -> Finding:
    """Whether BPF is closed to the unprivileged, as it should be."""
    name = "unprivileged_bpf_disabled"
    value = _read(host.proc / "sys" / "kernel" / name)
    if value is None:
        return warning(name, "the kernel does not say; it may lack bpf(2)")
    return ok(name, f"{value}; the agent is privileged and not concerned")


def check_uprobes(host: Host) -> Finding:
    """The kernel can attach probes to functions in user space."""
    path = host.sys / "bus" / "event_source" / "devices" / "uprobe"
    if path.exists():
        return ok("uprobes", str(path))
    if not (host.sys / "bus" / "event_source").exists():
        return warning("uprobes", "sysfs is hidden here, so this could not be checked")
    return missing(
        "uprobes",
        f"there is no {path}",
        "use a kernel built with CONFIG_UPROBE_EVENTS=y",
    )


def query_libbpf() -> Libbpf | str:
    """Load libbpf and let it try what a capture needs; a text says why it cannot be."""
    try:
        found = open_libbpf()
    except HostError as error:
        return str(error)
    library = found.library
    # What libbpf would print about refused attempts is said by the finding.
    library.libbpf_set_print(None)
    return Libbpf(
        found.version,
        library.libbpf_probe_bpf_prog_type(_PROG_TYPE_KPROBE, None) == 1,
        library.libbpf_probe_bpf_map_type(_MAP_TYPE_RINGBUF, None) == 1,
        found.path,
        found.passed_over,
    )


def check_libbpf(found: Libbpf | str) -> Finding:
    """Libbpf is there, and the kernel accepts a program and a ring buffer from it."""
    if isinstance(found, str):
        needed = ".".join(map(str, MINIMUM_VERSION))
        return missing(
            "libbpf",
            found,
            f"install libbpf {needed} or newer (Debian, Ubuntu: libbpf1; Fedora: libbpf)",
        )
    version = ".".join(map(str, found.version))
    if found.path:
        version += f" from {found.path}"
    if found.passed_over:
        version += f", the installation's own (the system's is of no use: {found.passed_over})"
    refused = [
        name
        for name, allowed in (
            ("a program", found.can_load_programs),
            ("a ring buffer", found.can_make_ring_buffers),
        )
        if not allowed
    ]
    if refused:
        return missing(
            "libbpf",
            f"{version}, but the kernel refused {' and '.join(refused)} just now",
            "run as root; in a container, allow bpf(2) in its seccomp profile",
        )
    return ok("libbpf", f"{version}; the kernel accepted a program and a ring buffer")


def check_object(host: Host) -> Finding:
    """The BPF programs are built for this machine."""
    variant = "" if _btf(host).exists() else ".nobtf"
    path = host.objects / f"otel_gpu.{host.machine}{variant}.bpf.o"
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        return missing(
            "bpf_object",
            f"{path}: {error.strerror}",
            "run `make bpf` in the source tree, or install a wheel, which holds the objects",
        )
    if magic != b"\x7fELF":
        return missing("bpf_object", f"{path}: not an object file", "run `make bpf`")
    return ok("bpf_object", str(path))


def check_pid_namespace(host: Host) -> Finding:
    """The agent sees the host's processes, not only its container's."""
    try:
        inode = (host.proc / "self" / "ns" / "pid").stat().st_ino
    except OSError as error:
        return warning("pid_namespace", f"cannot be read: {error.strerror}")
    if inode == _INITIAL_PID_NAMESPACE:
        return ok("pid_namespace", "the initial one")
    return warning(
        "pid_namespace",
        f"pid:[{inode}]: only processes inside this namespace are seen",
        "to see the whole host, start the container in the host's pid namespace",
    )


def check_tracefs(host: Host) -> Finding:
    """Whether tracefs is mounted, which other tools need."""
    folder = host.sys / "kernel" / "tracing"
    try:
        state = "mounted" if any(folder.iterdir()) else "not mounted"
    except FileNotFoundError:
        state = "not mounted"
    except PermissionError:
        state = "hidden from this user"
    return ok("tracefs", f"{state}; not needed")


def check_bpf_stats(host: Host) -> Finding:
    """Whether the kernel measures the run time of BPF programs."""
    value = _read(host.proc / "sys" / "kernel" / "bpf_stats_enabled")
    state = {"0": "off", "1": "on: every probe costs a little more"}.get(value or "", "not known")
    return ok("bpf_stats", state)


def check_protobuf() -> Finding:
    """Protocol buffers are encoded by compiled code."""
    from google.protobuf.internal import api_implementation  # noqa: PLC0415 -- 30 ms

    kind = api_implementation.Type()
    if kind == "upb":
        return ok("protobuf", kind)
    return warning(
        "protobuf",
        f"the {kind} implementation, which is about 20 times slower than upb",
        "install protobuf from a wheel, and leave PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION unset",
    )


def capabilities(host: Host) -> frozenset[str] | None:
    """Names of the capabilities, among those that matter, that this process holds."""
    match = re.search(
        r"^CapEff:\s*([0-9a-f]+)", _read(host.proc / "self" / "status") or "", re.MULTILINE
    )
    if match is None:
        return None
    held = int(match[1], 16)
    return frozenset(name for name, bit in _CAPABILITIES.items() if held >> bit & 1)


def _is_initial_user_namespace(host: Host) -> bool:
    text = _read(host.proc / "self" / "uid_map")
    return text is None or text.split() == ["0", "0", "4294967295"]


def _btf(host: Host) -> Path:
    return host.sys / "kernel" / "btf" / "vmlinux"


def _version_of(release: str) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
