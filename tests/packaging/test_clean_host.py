"""The wheel on a host that has no compiler, no kernel headers and no libbpf."""

import json
import shutil

import pytest

from tests.kernel.agent import calls, environment_for, losses
from tests.packaging.clean_host import PATH, PROGRAM, CleanHost, system_libbpf
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

pytestmark = pytest.mark.kernel

BUNDLED = "/site-packages/otel_gpu/_lib/libbpf.so.1"


def libbpf_of(host: CleanHost, *command: str) -> str:
    """Return what doctor says of libbpf there."""
    done = host.run(*command, PROGRAM, "doctor", "--json", env={"PATH": PATH}, check=False)
    (finding,) = (f for f in json.loads(done.stdout)["findings"] if f["name"] == "libbpf")
    assert finding["status"] == "ok"
    assert done.returncode == 0
    return str(finding["detail"])


def test_nothing_of_a_build_machine_is_there(clean_host: CleanHost) -> None:
    """Neither clang nor gcc is on PATH, there are no headers, and libbpf cannot be loaded."""
    assert shutil.which("clang", path=PATH) is None
    listed = clean_host.run("ls", "/usr/include", "/usr/src", "/opt/path").stdout.split()
    load = "import ctypes; ctypes.CDLL('libbpf.so.1')"
    loaded = clean_host.run("/opt/otel-gpu/bin/python", "-c", load, check=False)
    where = "import otel_gpu; print(otel_gpu.__file__)"

    assert listed == ["/opt/path:", "/usr/include:", "/usr/src:"]
    assert "OSError" in loaded.stderr
    assert clean_host.run("/opt/otel-gpu/bin/python", "-c", where).stdout.startswith("/opt/")


def test_doctor_says_that_the_bundled_libbpf_is_used(clean_host: CleanHost) -> None:
    """Where the system has none, the wheel's own is used, and doctor says where it is and why."""
    detail = libbpf_of(clean_host)

    assert BUNDLED in detail
    assert "the installation's own (the system's is of no use: " in detail
    assert "the kernel accepted a program and a ring buffer" in detail


def test_the_systems_libbpf_is_preferred(clean_host: CleanHost) -> None:
    """Where the system has one that is new enough, the same installation uses that."""
    if not system_libbpf():
        pytest.skip("this host has no libbpf of its own")
    again = " && ".join(f"umount {path}" for path in system_libbpf())
    detail = libbpf_of(clean_host, "/usr/bin/unshare", "--mount", "/bin/sh", "-c",
                       f'PATH=$PATH:/usr/bin:/bin; {again}; exec "$@"', "sh")  # fmt: skip

    assert BUNDLED not in detail
    assert "/libbpf.so.1; the kernel accepted" in detail


def test_run_counts_every_call(
    clean_host: CleanHost, receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """1009 calls of a program are 1009 at the receiver, and nothing is lost."""
    done = clean_host.run(
        PROGRAM, "run", "--summary", "never",
        "--", workload("first_call"), "direct", "1009", stubs.runtime,
        env=environment_for(receiver) | {"PATH": PATH},
    )  # fmt: skip
    pid = json.loads(done.stdout)["pid"]

    assert calls(receiver, "cudaMalloc", pid) == 1009
    assert losses(receiver) == {}
