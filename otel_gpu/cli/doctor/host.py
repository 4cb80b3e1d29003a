"""
Checks of the host: every requirement of a capture.

A check examines one thing and returns one result. Checks change nothing and do not raise.
``visibility.py`` has the checks of observed processes.
"""

import importlib.metadata
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import otel_gpu
from otel_gpu.capture.bpf.bcc.kernel_headers import find_bcc, find_headers, install_hint
from otel_gpu.capture.bpf.libbpf import Libbpf
from otel_gpu.capture.bpf.libbpf_file import MINIMUM_VERSION
from otel_gpu.capture.bpf.libbpf_trials import LibbpfReport, query_libbpf
from otel_gpu.capture.bpf.loaders import choose_loader
from otel_gpu.capture.host.kernel_log import PATH
from otel_gpu.cli.doctor.checks import CheckResult, CheckStatus, missing, named, ok, warning
from otel_gpu.cli.doctor.reachability import check_endpoints
from otel_gpu.errors import HostError
from otel_gpu.options import Loader
from otel_gpu.procfs.capabilities import names_in

_CAPABILITIES = {"DAC_READ_SEARCH", "SYS_PTRACE", "SYS_ADMIN", "SYSLOG", "PERFMON", "BPF"}
# Before Linux kernel commit 41edc1b0c1ea ("bpf: rework memory accounting") (in v5.11) maps
# counted as locked memory. A kernel with all HELPERS is newer, so SYS_RESOURCE is not needed.
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO
_HIDDEN = "not shown by this /proc"
_CLOCK_PERIOD_NS = 1_000_000_000
_SHOWN_ADAPTERS = 8


@dataclass(frozen=True, kw_only=True)
class CheckedHost:
    """The host that is checked: versions, and the paths to look in. Tests set other paths."""

    release: str
    machine: str
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    objects: Path = Path(otel_gpu.__file__).parent / "_bpf"
    root: Path = Path("/")


def examine_host(
    host: CheckedHost,
    environ: Mapping[str, str],
    *,
    load_libbpf: Callable[[], LibbpfReport | str] | None = None,
    open_clock: Callable[[], int] | None = None,
    kernel_log: str = PATH,
) -> Iterator[CheckResult]:
    """Check all requirements of a capture, in the order of the output."""
    libbpf = (load_libbpf or query_libbpf)()
    yield from named(
        kernel=_check_kernel(host, libbpf),
        btf=_check_btf(host),
        capabilities=_check_capabilities(host),
        proc=_check_proc(host),
        lockdown=_check_lockdown(host),
        perf_event_paranoid=_check_perf_event_paranoid(host),
        sampling_clock=_check_sampling_clock(host, (open_clock or try_clock)()),
        unprivileged_bpf_disabled=_check_unprivileged_bpf(host),
        uprobes=_check_uprobes(host),
        libbpf=_check_libbpf(libbpf),
        bpf_object=_check_object(host),
        pid_namespace=_check_pid_namespace(host),
        tracefs=_check_tracefs(host),
        bpf_stats=_check_bpf_stats(host),
        protobuf=_check_protobuf(),
        nvml=_check_nvml(),
        kernel_log=_check_kernel_log(host, kernel_log),
        rdma=_check_rdma(host),
    )
    yield from check_endpoints(environ)


def _check_kernel(host: CheckedHost, libbpf: LibbpfReport | str) -> CheckResult:
    name = f"Linux {host.release} on {host.machine}"
    if isinstance(libbpf, str) or not libbpf.can_load_programs:
        return ok(f"{name}; what its BPF can do could not be tried")
    if libbpf.lacking:
        return missing(
            f"{name} does not have {', '.join(libbpf.lacking)}, which the programs call",
            "update the kernel: Linux 5.15 has all that is needed, and so have some older ones of "
            "distributions, such as RHEL 9; a recording made elsewhere can be replayed here",
        )
    return ok(f"{name}; it has all that the programs call")


def _check_btf(host: CheckedHost) -> CheckResult:
    path = _btf(host)
    if path.exists():
        return ok(str(path))
    return warning(
        f"there is no {path}: the kernel's headers have to stand in for it",
        "kernels built with CONFIG_DEBUG_INFO_BTF=y, as all large distributions' are, need none",
    )


def check_loader(
    host: CheckedHost, wanted: Loader, *, find: Callable[[], str | None] = find_bcc
) -> CheckResult:
    """Check that the loader of a capture can relocate the BPF programs for this kernel."""
    if choose_loader(wanted, _btf(host)) == Loader.LIBBPF:
        if _btf(host).exists():
            return ok("libbpf; the kernel describes its types")
        return missing(
            "libbpf is asked for, and the kernel does not describe its types",
            "set capture.loader to auto or bcc",
        )
    python, headers = find(), find_headers(host.release, host.root)
    if python and headers:
        return ok(f"bcc; BCC of {python}, kernel headers in {headers}")
    needed = {"BCC": python, f"the headers of kernel {host.release}": headers}
    lacking = [name for name, found in needed.items() if not found]
    os_release = host.root / "etc" / "os-release"
    hint = install_hint(host.release, bcc=not python, headers=not headers, os_release=os_release)
    return missing(f"bcc, without {' and without '.join(lacking)}", hint)


def _check_capabilities(host: CheckedHost) -> CheckResult:
    held = capabilities(host)
    if held is None:
        return warning("/proc/self/status cannot be read")
    users = _read(host.proc / "self" / "uid_map")
    if users is not None and users.split() != ["0", "0", "4294967295"]:
        return missing(
            "this is a user namespace, whose capabilities the kernel does not accept for BPF",
            "run in the initial user namespace, such as a container without user remapping",
        )
    needed = set() if "SYS_ADMIN" in held else {"BPF", "PERFMON"}
    if lacking := [f"CAP_{name}" for name in sorted(needed - held)]:
        return missing(
            "without " + ", ".join(lacking),
            "run as root, or give the agent CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and "
            "CAP_DAC_READ_SEARCH",
        )
    if lacking := [f"CAP_{n}" for n in ("SYS_PTRACE", "DAC_READ_SEARCH") if n not in held]:
        return warning(
            "without " + ", ".join(lacking) + ": only this user's processes can be looked into",
            "run as root, or add these capabilities",
        )
    return ok(", ".join(f"CAP_{name}" for name in sorted(held)))


def _check_lockdown(host: CheckedHost) -> CheckResult:
    path = host.sys / "kernel" / "security" / "lockdown"
    if (text := _read(path)) is None:
        return ok("this kernel has no lockdown")
    match = re.search(r"\[(\w+)\]", text)
    mode = match[1] if match else text
    if mode == "confidentiality":
        return missing(
            "confidentiality: BPF programs may not read memory",
            "boot with lockdown=integrity or lockdown=none",
        )
    return ok(mode)


def _shows_processes_only(host: CheckedHost) -> bool:
    return not (host.proc / "sys").exists() and (host.proc / "self").exists()


def _check_proc(host: CheckedHost) -> CheckResult:
    if _shows_processes_only(host):
        return warning(
            "only processes are shown (subset=pid): the kernel's functions in which threads wait, "
            "and the host's pressure and load, are not known",
            "mount /proc without subset=pid where the agent runs",
        )
    if not (host.proc / "self").exists():
        return warning("nothing of it can be read")
    return ok("all of it is shown")


def _check_perf_event_paranoid(host: CheckedHost) -> CheckResult:
    level = _read(host.proc / "sys" / "kernel" / "perf_event_paranoid")
    if level is None and _shows_processes_only(host):
        level = _HIDDEN
    if level is None:
        return missing(
            "the kernel has no perf events, through which uprobes attach",
            "use a kernel built with CONFIG_PERF_EVENTS=y",
        )
    held = capabilities(host) or frozenset()
    if held & {"PERFMON", "SYS_ADMIN"}:
        return ok(f"{level}; no obstacle with CAP_PERFMON")
    return missing(
        f"{level}, and without CAP_PERFMON uprobes are refused at every level",
        "run as root, or give the agent CAP_PERFMON",
    )


def try_clock() -> int:
    """Open and close a CPU's clock. Return 0, the errno of the failure, or -1 without libbpf."""
    try:
        fd = Libbpf().open_cpu_clock(min(os.sched_getaffinity(0)), _CLOCK_PERIOD_NS)
    except HostError:
        return -1
    if fd < 0:
        return -fd
    os.close(fd)
    return 0


def _check_sampling_clock(host: CheckedHost, error: int) -> CheckResult:
    if error < 0:
        return warning("without libbpf this could not be checked")
    if not error:
        return ok("cpu-clock: the kernel gave one")
    why = f"{os.strerror(error)}: the kernel gives no clock, so work has no lines"
    level = _read(host.proc / "sys" / "kernel" / "perf_event_paranoid") or "unknown"
    held = capabilities(host) or frozenset()
    if held & {"PERFMON", "SYS_ADMIN"}:
        return warning(
            why,
            "in a container, allow perf_event_open(2) in its seccomp profile; "
            "else samples.enabled: false says that none are wanted",
        )
    return warning(
        f"{why} (perf_event_paranoid {level}, without CAP_PERFMON)",
        "run as root, or give the agent CAP_PERFMON",
    )


def _check_unprivileged_bpf(host: CheckedHost) -> CheckResult:
    value = _read(host.proc / "sys" / "kernel" / "unprivileged_bpf_disabled")
    if value is None and _shows_processes_only(host):
        value = _HIDDEN
    if value is None:
        return warning("the kernel does not say; it may lack bpf(2)")
    return ok(f"{value}; the agent is privileged and not concerned")


def _check_uprobes(host: CheckedHost) -> CheckResult:
    path = host.sys / "bus" / "event_source" / "devices" / "uprobe"
    if path.exists():
        return ok(str(path))
    if not (host.sys / "bus" / "event_source").exists():
        return warning("sysfs is hidden here, so this could not be checked")
    return missing(f"there is no {path}", "use a kernel built with CONFIG_UPROBE_EVENTS=y")


def _check_libbpf(found: LibbpfReport | str) -> CheckResult:
    if isinstance(found, str):
        needed = ".".join(map(str, MINIMUM_VERSION))
        return missing(
            found, f"install libbpf {needed} or newer (Debian, Ubuntu: libbpf1; Fedora: libbpf)"
        )
    version = ".".join(map(str, found.version))
    if found.path:
        version += f" from {found.path}"
    if found.passed_over:
        version += f", the installation's own (the system's is of no use: {found.passed_over})"
    tried = {"a program": found.can_load_programs, "a ring buffer": found.can_make_ring_buffers}
    if refused := [name for name, allowed in tried.items() if not allowed]:
        return missing(
            f"{version}, but the kernel refused {' and '.join(refused)} just now",
            "run as root; in a container, allow bpf(2) in its seccomp profile",
        )
    return ok(f"{version}; the kernel accepted a program and a ring buffer")


def _check_object(host: CheckedHost) -> CheckResult:
    variant = "" if _btf(host).exists() else ".nobtf"
    path = host.objects / f"otel_gpu.{host.machine}{variant}.bpf.o"
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        return missing(
            f"{path}: {error.strerror}",
            "run `make bpf` in the source tree, or install a wheel, which holds the objects",
        )
    if magic != b"\x7fELF":
        return missing(f"{path}: not an object file", "run `make bpf`")
    return ok(str(path))


def _check_pid_namespace(host: CheckedHost) -> CheckResult:
    try:
        inode = (host.proc / "self" / "ns" / "pid").stat().st_ino
    except OSError as error:
        return warning(f"cannot be read: {error.strerror}")
    if inode == _INITIAL_PID_NAMESPACE:
        return ok("the initial one")
    return warning(
        f"pid:[{inode}]: only processes inside this namespace are seen",
        "to see the whole host, start the container in the host's pid namespace",
    )


def _check_tracefs(host: CheckedHost) -> CheckResult:
    folder = host.sys / "kernel" / "tracing"
    try:
        state = "mounted" if any(folder.iterdir()) else "not mounted"
    except FileNotFoundError:
        state = "not mounted"
    except PermissionError:
        state = "hidden from this user"
    return ok(f"{state}; not needed")


def _check_bpf_stats(host: CheckedHost) -> CheckResult:
    value = _read(host.proc / "sys" / "kernel" / "bpf_stats_enabled")
    state = {"0": "off", "1": "on: every probe costs a little more"}.get(value or "", "not known")
    return ok(state)


def _check_protobuf() -> CheckResult:
    from google.protobuf.internal import api_implementation  # noqa: PLC0415 -- 30 ms

    kind = api_implementation.Type()
    if kind == "upb":
        return ok(kind)
    return warning(
        f"the {kind} implementation, which is about 20 times slower than upb",
        "install protobuf from a wheel, and leave PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION unset",
    )


def _check_nvml() -> CheckResult:
    # The library itself is not called: that takes long if a device fell off its bus.
    try:
        version = importlib.metadata.version("nvidia-ml-py")
    except importlib.metadata.PackageNotFoundError:
        return ok("what devices say of themselves is not read: pip install 'otel-gpu[nvml]'")
    return ok(f"nvidia-ml-py {version}")


def _check_kernel_log(host: CheckedHost, path: str) -> CheckResult:
    if not path:
        return ok("devices.kernel_log is empty: it is not read")
    lost = "errors of devices (XIDs) are read from NVML, which does not say whose work it was"
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        known = capabilities(host)
        without = "" if known is None or "SYSLOG" in known else ", without CAP_SYSLOG"
        return ok(f"{path}: {error.strerror}{without}: {lost}")
    if _check_pid_namespace(host).status != CheckStatus.OK:
        return ok(
            f"{path}; errors of devices are of no process, as its pids are of the initial namespace"
        )
    return ok(path)


def _check_rdma(host: CheckedHost) -> CheckResult:
    # Counters are not read: a hanging adapter would block this.
    root = host.sys / "class" / "infiniband"
    try:
        adapters = sorted(path.name for path in root.iterdir())
    except FileNotFoundError:
        return ok("this host has no network adapter that does RDMA")
    except OSError as error:
        return warning(
            f"{root}: {error.strerror}", "set fabric.root to where the host's is mounted"
        )
    if not adapters:
        return ok("this host has no network adapter that does RDMA")
    more = f" and {len(adapters) - _SHOWN_ADAPTERS} more" if adapters[_SHOWN_ADAPTERS:] else ""
    return ok(f"counters of {', '.join(adapters[:_SHOWN_ADAPTERS])}{more} in {root}")


def capabilities(host: CheckedHost) -> frozenset[str] | None:
    """Return which of the relevant capabilities this process has, without ``CAP_``. None: unknown."""
    match = re.search(
        r"^CapEff:\s*([0-9a-f]+)", _read(host.proc / "self" / "status") or "", re.MULTILINE
    )
    if match is None:
        return None
    return names_in(int(match[1], 16)) & _CAPABILITIES


def _btf(host: CheckedHost) -> Path:
    return host.sys / "kernel" / "btf" / "vmlinux"


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
