"""The doctor: each requirement, met and not met, on hosts made of files."""

import errno
import importlib.metadata
import json
import shutil
import socket
import struct
from types import SimpleNamespace

import pytest

from otel_gpu.capture.bpf.libbpf_trials import HELPERS, LibbpfReport, query_libbpf
from otel_gpu.capture.bpf.objects import object_path
from otel_gpu.cli.commands import doctor as verb
from otel_gpu.cli.doctor import host as doctor
from otel_gpu.cli.doctor.checks import CheckResult, can_capture, to_json
from otel_gpu.cli.doctor.host import CheckedHost, examine_host
from otel_gpu.cli.doctor.reachability import check_endpoints
from otel_gpu.config import Config

ALL = (1 << 41) - 1
GOOD_LIBBPF = LibbpfReport((1, 1), can_load_programs=True, can_make_ring_buffers=True)


def write(path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def host(tmp_path):
    """A host on which everything is as it should be."""
    host = CheckedHost(
        release="6.1.0-18-amd64",
        machine="x86_64",
        proc=tmp_path / "proc",
        sys=tmp_path / "sys",
        objects=tmp_path / "objects",
    )
    write(host.proc / "self" / "status", f"Name:\tx\nCapEff:\t{ALL:016x}\n")
    write(host.proc / "self" / "uid_map", "         0          0 4294967295\n")
    write(host.proc / "self" / "ns" / "pid")
    write(host.proc / "sys" / "kernel" / "perf_event_paranoid", "2\n")
    write(host.proc / "sys" / "kernel" / "unprivileged_bpf_disabled", "2\n")
    write(host.proc / "sys" / "kernel" / "bpf_stats_enabled", "0\n")
    write(host.sys / "kernel" / "btf" / "vmlinux")
    write(host.sys / "kernel" / "tracing" / "trace")
    write(host.sys / "kernel" / "security" / "lockdown", "none [integrity] confidentiality\n")
    write(host.sys / "bus" / "event_source" / "devices" / "uprobe" / "type", "9\n")
    (host.objects).mkdir()
    (host.objects / "otel_gpu.x86_64.bpf.o").write_bytes(b"\x7fELF\x02")
    return host


def set_capabilities(host, *bits):
    mask = sum(1 << bit for bit in bits)
    write(host.proc / "self" / "status", f"CapEff:\t{mask:016x}\n")


def found(host, name, **kwargs):
    kwargs.setdefault("load_libbpf", lambda: GOOD_LIBBPF)
    kwargs.setdefault("open_clock", lambda: 0)
    findings = {finding.name: finding for finding in examine_host(host, {}, **kwargs)}
    return findings[name]


def test_a_good_host_can_capture(host, monkeypatch):
    """Where every requirement is met, nothing is reported missing."""
    monkeypatch.setattr(doctor, "_INITIAL_PID_NAMESPACE", (host.proc / "self/ns/pid").stat().st_ino)
    findings = list(examine_host(host, {}, load_libbpf=lambda: GOOD_LIBBPF, open_clock=lambda: 0))

    assert {finding.name: finding.status for finding in findings} == {
        "kernel": "ok",
        "btf": "ok",
        "capabilities": "ok",
        "lockdown": "ok",
        "proc": "ok",
        "perf_event_paranoid": "ok",
        "sampling_clock": "ok",
        "unprivileged_bpf_disabled": "ok",
        "uprobes": "ok",
        "libbpf": "ok",
        "bpf_object": "ok",
        "pid_namespace": "ok",
        "tracefs": "ok",
        "bpf_stats": "ok",
        "protobuf": "ok",
        "nvml": "ok",
        "kernel_log": "ok",
        "rdma": "ok",
        "endpoint": "warning",
    }
    assert can_capture(findings)


def test_without_the_extra_devices_are_not_read(host, monkeypatch):
    """It is no fault, and one line says what to do."""

    def version(_):
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "version", version)
    finding = found(host, "nvml")

    assert finding.status == "ok"
    assert "pip install 'otel-gpu[nvml]'" in finding.detail


def test_without_the_kernels_log_one_line_says_what_that_costs(host, tmp_path):
    """It is no fault: NVML says errors of devices as well, but not whose work it was."""
    set_capabilities(host, 2, 19, 38, 39)
    finding = found(host, "kernel_log", kernel_log=str(tmp_path / "kmsg"))
    assert finding.status == "ok"
    assert "No such file or directory, without CAP_SYSLOG: errors of devices" in finding.detail

    (tmp_path / "kmsg").touch()
    elsewhere = found(host, "kernel_log", kernel_log=str(tmp_path / "kmsg"))
    assert (elsewhere.status, "of no process" in elsewhere.detail) == ("ok", True)
    assert "is not read" in found(host, "kernel_log", kernel_log="").detail


def test_network_adapters_that_do_rdma_are_named(host):
    """Most hosts have none, and some many."""
    assert found(host, "rdma").detail == "this host has no network adapter that does RDMA"

    for number in range(11):
        (host.sys / "class" / "infiniband" / f"mlx5_{number:02}").mkdir(parents=True)

    finding = found(host, "rdma")
    assert finding.status == "ok"
    assert "counters of mlx5_00, mlx5_01, " in finding.detail
    assert " and 3 more in " in finding.detail


@pytest.mark.parametrize(
    "release", ["5.14.0-362.8.1.el9_3.x86_64", "4.18.0-513.el8.x86_64", "6.18.44", "rolling"]
)
@pytest.mark.parametrize("lacking", [(), ("bpf_get_attach_cookie", "bpf_task_pt_regs")])
def test_a_kernel_is_told_by_what_it_can_do(host, release, lacking):
    """RHEL 9 calls its kernel 5.14, and has the BPF of younger ones: no version refuses anybody."""
    host = CheckedHost(release=release, machine="x86_64", proc=host.proc, sys=host.sys)

    finding = found(host, "kernel", load_libbpf=lambda: GOOD_LIBBPF._replace(lacking=lacking))

    assert finding.status == ("missing" if lacking else "ok")
    assert release in finding.detail
    assert all(name in finding.detail for name in lacking)


@pytest.mark.parametrize("libbpf", ["none", GOOD_LIBBPF._replace(can_load_programs=False)])
def test_a_kernel_that_could_not_be_tried_is_not_refused(host, libbpf):
    """What stands in the way is another finding."""
    finding = found(host, "kernel", load_libbpf=lambda: libbpf)

    assert finding.status == "ok"
    assert "could not be tried" in finding.detail


def test_what_the_programs_call_is_tried():
    """Whatever the compiled object calls, but for old functions, and those that it asks for before."""
    old = range(112)
    # bpf_loop and bpf_copy_from_user_task are not called where they are not; iterators alone write.
    asked_for = {127, 181, 191}
    called = set(_helpers_called(object_path()))

    assert called - set(old) - asked_for == set(HELPERS)


def _helpers_called(path):
    """The numbers of the kernel's functions that the instructions of an object call."""
    data = path.read_bytes()
    (sections_at,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    for number in range(count):
        _, kind, flags, _, at, length = struct.unpack_from(
            "<IIQQQQ", data, sections_at + number * size
        )
        if kind == 1 and flags & 4:  # SHT_PROGBITS, SHF_EXECINSTR
            for place in range(at, at + length, 8):
                code, registers, _, value = struct.unpack_from("<BBhi", data, place)
                if code == 0x85 and registers >> 4 == 0:  # BPF_JMP | BPF_CALL of a helper
                    yield value


def test_a_kernel_without_btf_is_told_of_headers(host):
    """BTF can be done without, and the doctor says what stands in for it."""
    (host.sys / "kernel" / "btf" / "vmlinux").unlink()

    finding = found(host, "btf")

    assert finding.status == "warning"
    assert "headers" in finding.detail
    assert "CONFIG_DEBUG_INFO_BTF" in finding.hint


@pytest.mark.parametrize(
    ("bits", "status", "detail"),
    [
        ((), "missing", "without CAP_BPF, CAP_PERFMON"),
        ((39,), "missing", "without CAP_PERFMON"),
        ((38, 39), "warning", "without CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH: only this user's"),
        ((2, 19, 38, 39), "ok", "CAP_BPF, CAP_DAC_READ_SEARCH, CAP_PERFMON, CAP_SYS_PTRACE"),
        ((2, 19, 21), "ok", "CAP_DAC_READ_SEARCH, CAP_SYS_ADMIN, CAP_SYS_PTRACE"),
    ],
)
def test_capabilities_that_lack_are_named(host, bits, status, detail):
    """BPF and PERFMON are indispensable, or SYS_ADMIN in their place; the others widen the view."""
    set_capabilities(host, *bits)

    finding = found(host, "capabilities")

    assert finding.status == status
    assert finding.detail.startswith(detail)


def test_roots_of_user_namespaces_are_not_root(host):
    """A user namespace shows all capabilities, and the kernel accepts none of them for BPF."""
    write(host.proc / "self" / "uid_map", "0 100000 65536\n")

    finding = found(host, "capabilities")

    assert finding.status == "missing"
    assert "user namespace" in finding.detail


@pytest.mark.parametrize(
    ("text", "status", "detail"),
    [
        ("[none] integrity confidentiality", "ok", "none"),
        ("none integrity [confidentiality]", "missing", "confidentiality: BPF programs may not"),
    ],
)
def test_lockdown_that_hides_memory_is_missing(host, text, status, detail):
    """Only the confidentiality mode stands in the way."""
    write(host.sys / "kernel" / "security" / "lockdown", text)

    finding = found(host, "lockdown")

    assert finding.status == status
    assert finding.detail.startswith(detail)


def test_kernels_without_lockdown_are_fine(host):
    """Most kernels in virtual machines have none."""
    (host.sys / "kernel" / "security" / "lockdown").unlink()

    assert found(host, "lockdown").status == "ok"


@pytest.mark.parametrize(("bits", "status"), [((38, 39), "ok"), ((), "missing")])
def test_the_paranoid_level_stops_only_the_unprivileged(host, bits, status):
    """The level is no obstacle with CAP_PERFMON."""
    write(host.proc / "sys" / "kernel" / "perf_event_paranoid", "4\n")
    set_capabilities(host, *bits)

    finding = found(host, "perf_event_paranoid")

    assert finding.status == status
    assert finding.detail.startswith("4")


@pytest.mark.parametrize(
    ("bits", "error", "detail", "hint"),
    [
        ((39,), errno.EACCES, "(perf_event_paranoid 2, without CAP_PERFMON)", "CAP_PERFMON"),
        ((38, 39), errno.EPERM, "Operation not permitted: ", "seccomp profile"),
        ((38, 39), -1, "without libbpf", ""),
    ],
)
def test_a_refused_clock_costs_lines_and_is_said(host, bits, error, detail, hint):
    """With what to do about it; the rest can be captured all the same."""
    set_capabilities(host, *bits)

    finding = found(host, "sampling_clock", open_clock=lambda: error)

    assert finding.status == "warning"
    assert detail in finding.detail
    assert hint in finding.hint


def test_kernels_without_uprobes_are_refused(host):
    """CUDA calls are seen through uprobes and through nothing else."""
    (host.sys / "bus" / "event_source" / "devices" / "uprobe" / "type").unlink()
    (host.sys / "bus" / "event_source" / "devices" / "uprobe").rmdir()

    assert found(host, "uprobes").status == "missing"


@pytest.mark.parametrize(
    ("libbpf", "status", "detail"),
    [
        ("there is none", "missing", "there is none"),
        (
            GOOD_LIBBPF._replace(can_load_programs=False),
            "missing",
            "1.1, but the kernel refused a program just now",
        ),
        (
            GOOD_LIBBPF._replace(can_load_programs=False, can_make_ring_buffers=False),
            "missing",
            "1.1, but the kernel refused a program and a ring buffer just now",
        ),
        (GOOD_LIBBPF, "ok", "1.1; the kernel accepted a program and a ring buffer"),
        (
            GOOD_LIBBPF._replace(path="/lib/libbpf.so.1"),
            "ok",
            "1.1 from /lib/libbpf.so.1; the kernel accepted a program and a ring buffer",
        ),
        (
            GOOD_LIBBPF._replace(path="/opt/l", passed_over="short"),
            "ok",
            (
                "1.1 from /opt/l, the installation's own (the system's is of no use: short); the kernel "
                "accepted a program and a ring buffer"
            ),
        ),
    ],
)
def test_libbpf_and_what_the_kernel_lets_it_do(host, libbpf, status, detail):
    """A program that the kernel really accepted says more than any setting."""
    finding = found(host, "libbpf", load_libbpf=lambda: libbpf)

    assert (finding.status, finding.detail) == (status, detail)


def test_a_missing_object_says_how_to_build_it(host):
    """A source tree that was not built yet is the usual reason."""
    (host.objects / "otel_gpu.x86_64.bpf.o").unlink()

    finding = found(host, "bpf_object")

    assert finding.status == "missing"
    assert "make bpf" in finding.hint


def test_an_object_for_another_machine_does_not_count(host):
    """Objects differ by architecture, since arguments lie in different registers."""
    host = CheckedHost(
        release=host.release, machine="aarch64", proc=host.proc, objects=host.objects
    )

    assert found(host, "bpf_object").status == "missing"


def test_a_kernel_without_btf_takes_another_object(host):
    """The one for kernels that do not describe their types is what has to be there then."""
    (host.sys / "kernel" / "btf" / "vmlinux").unlink()
    assert found(host, "bpf_object").status == "missing"

    (host.objects / "otel_gpu.x86_64.nobtf.bpf.o").write_bytes(b"\x7fELF")
    assert found(host, "bpf_object").status == "ok"


def test_a_pid_namespace_narrows_the_view(host):
    """A container sees its own processes only, and is told so."""
    finding = found(host, "pid_namespace")

    assert finding.status == "warning"
    assert "only processes inside this namespace are seen" in finding.detail


def test_a_host_that_shows_nothing_raises_nothing(tmp_path):
    """Unreadable files are findings, never tracebacks."""
    host = CheckedHost(release="", machine="", proc=tmp_path, sys=tmp_path, objects=tmp_path)

    findings = list(examine_host(host, {}, load_libbpf=lambda: "none"))

    assert not can_capture(findings)
    assert len({finding.name for finding in findings}) == 19


def test_this_machines_libbpf_answers():
    """The real query gives facts or the reason why there are none."""
    answer = query_libbpf()

    assert answer if isinstance(answer, str) else answer.version >= (1, 0)
    # Tests run where captures do.
    assert isinstance(answer, str) or answer.lacking == ()


def test_reachable_endpoints_are_told_from_dead_ones():
    """A TCP connection is made to each endpoint, once per URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
        alive = list(check_endpoints(environ))
    dead = list(check_endpoints(environ))

    assert alive == [
        CheckResult(
            "endpoint", "ok", f"http://127.0.0.1:{port} (traces, metrics) takes connections"
        )
    ]
    assert [finding.status for finding in dead] == ["warning"]
    assert "Connection refused" in dead[0].detail


def test_each_signals_own_endpoint_is_checked():
    """A signal's own variable wins over the general one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::bad",
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"127.0.0.1:{port}",
        }
        findings = list(check_endpoints(environ))

    assert findings == [
        CheckResult(
            "endpoint", "warning", "http://[::bad (traces): not a URL", "write http://HOST:PORT"
        ),
        CheckResult("endpoint", "ok", f"127.0.0.1:{port} (metrics) takes connections"),
    ]


def test_a_disabled_sdk_is_pointed_out():
    """Nothing is sent then, however good the endpoint."""
    [finding] = check_endpoints({"OTEL_SDK_DISABLED": "true"})

    assert finding.status == "warning"
    assert "nothing is sent" in finding.detail


def test_the_document_says_whether_a_capture_is_possible():
    """Scripts read one truth value and the list of findings behind it."""
    good, bad = CheckResult("a", "ok", "x"), CheckResult("b", "missing", "y", "z")

    assert to_json([good], [])["can_capture"] is True
    assert to_json([good], [bad]) == {
        "schema_version": 1,
        "can_capture": False,
        "findings": [{"name": "a", "status": "ok", "detail": "x", "hint": ""}],
        "processes": [{"name": "b", "status": "missing", "detail": "y", "hint": "z"}],
    }


class Lines:
    """An output that keeps what it is given."""

    def __init__(self):
        self.documents, self.lines = [], []
        self.stdout_console = SimpleNamespace(print=self.lines.append)

    def json(self, document):
        self.documents.append(document)

    def line(self, text=""):
        self.lines.append(text)


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warning", 0), ("missing", 1)])
def test_the_exit_code_says_whether_a_capture_is_possible(monkeypatch, status, code):
    """Only what is indispensable makes the doctor fail."""
    monkeypatch.setattr(
        verb, "examine_host", lambda host, environ, **_: [CheckResult("x", status, "y")]
    )
    monkeypatch.setattr(verb, "examine_processes", lambda: CheckResult("z", "ok", ""))
    out = Lines()

    assert verb.run(SimpleNamespace(pid=[], json=True), Config(), out) == code
    assert json.loads(json.dumps(out.documents))[0]["can_capture"] is (code == 0)


def test_names_cannot_command_the_terminal():
    """A library's path may hold anything; escape sequences reach nobody's terminal."""
    assert verb.printable("/lib\x1b[2Jx\n") == "/lib\\x1b[2Jx\\n"


@pytest.mark.parametrize(
    ("error", "state"),
    [(PermissionError, "hidden from this user"), (FileNotFoundError, "not mounted")],
)
def test_tracefs_that_cannot_be_seen_stops_nothing(host, monkeypatch, error, state):
    """It is root's alone on most hosts, and we do not need it."""

    def refuse(_):
        raise error

    monkeypatch.setattr(type(host.sys), "iterdir", refuse)

    assert found(host, "tracefs") == CheckResult("tracefs", "ok", f"{state}; not needed")


def test_a_proc_that_shows_only_processes_is_no_obstacle(host):
    """As in a container with subset=pid: what it hides was never needed, and some of it is missed."""
    shutil.rmtree(host.proc / "sys")

    listed = list(examine_host(host, {}, load_libbpf=lambda: GOOD_LIBBPF, open_clock=lambda: 0))
    findings = {finding.name: finding for finding in listed}

    assert findings["perf_event_paranoid"].status == "ok"
    assert findings["unprivileged_bpf_disabled"].status == "ok"
    assert findings["proc"].status == "warning"
    assert "subset=pid" in findings["proc"].detail
    assert can_capture(listed)


def test_a_kernel_without_perf_events_is_an_obstacle(host):
    (host.proc / "sys" / "kernel" / "perf_event_paranoid").unlink()

    assert found(host, "perf_event_paranoid").status == "missing"
