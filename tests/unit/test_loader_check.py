"""What the doctor says of the loader, and what it would have installed."""

import pytest

from otel_gpu.capture.bpf.bcc.kernel_headers import find_headers, install_hint
from otel_gpu.cli.doctor.host import CheckedHost, check_loader

RELEASE = "6.1.0-56-amd64"


@pytest.fixture(autouse=True)
def no_named_headers(monkeypatch):
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)


@pytest.fixture
def host(tmp_path):
    """A Debian host whose kernel has no BTF, without headers."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "os-release").write_text('ID=debian\nPRETTY_NAME="Debian 12"\n')
    return CheckedHost(release=RELEASE, machine="x86_64", sys=tmp_path / "sys", root=tmp_path)


def add_btf(host):
    path = host.sys / "kernel" / "btf" / "vmlinux"
    path.parent.mkdir(parents=True)
    path.touch()


def add_headers(host, folder="source"):
    path = host.root / "lib" / "modules" / RELEASE / folder / "include" / "linux" / "kconfig.h"
    path.parent.mkdir(parents=True)
    path.touch()


def found():
    return "/usr/bin/python3"


def not_found():
    return None


def test_btf_needs_nothing_else(host):
    """Where the kernel describes its types, BCC is not even looked for."""
    add_btf(host)

    finding = check_loader(host, "auto", find=lambda: pytest.fail("was looked for"))

    assert (finding.status, finding.detail) == ("ok", "libbpf; the kernel describes its types")


@pytest.mark.parametrize("folder", ["source", "build"])
def test_bcc_with_headers_will_do(host, folder):
    """Without BTF, both must be there; Debian has the headers in one folder, others in another."""
    add_headers(host, folder)

    finding = check_loader(host, "auto", find=found)

    assert finding.status == "ok"
    assert str(host.root / "lib" / "modules" / RELEASE / folder) in finding.detail


@pytest.mark.parametrize(
    ("find", "headers", "detail", "hint"),
    [
        (not_found, True, "bcc, without BCC", "apt-get install python3-bpfcc"),
        (
            found,
            False,
            "bcc, without the headers of kernel 6.1.0-56-amd64",
            "apt-get install linux-headers-6.1.0-56-amd64",
        ),
        (
            not_found,
            False,
            "bcc, without BCC and without the headers of kernel 6.1.0-56-amd64",
            "apt-get install python3-bpfcc linux-headers-6.1.0-56-amd64",
        ),
    ],
)
def test_what_is_missing_is_named_with_its_package(host, find, headers, detail, hint):
    """The hint can be pasted: the packages of this distribution, for this kernel."""
    if headers:
        add_headers(host)

    finding = check_loader(host, "auto", find=find)

    assert (finding.status, finding.detail, finding.hint) == ("missing", detail, hint)


def test_libbpf_without_btf_cannot_be(host):
    """Who asks for the one loader is told to ask for the other."""
    finding = check_loader(host, "libbpf", find=found)

    assert finding.status == "missing"
    assert finding.hint == "set capture.loader to auto or bcc"


def test_bcc_is_looked_for_where_it_is_asked_for(host):
    """Also where there is BTF."""
    add_btf(host)

    assert check_loader(host, "bcc", find=not_found).status == "missing"


@pytest.mark.parametrize(
    ("os_release", "release", "hint"),
    [
        ("ID=ubuntu\nID_LIKE=debian\n", "5.15.0-1", "apt-get install python3-bpfcc linux-headers-"),
        ("ID=linuxmint\nID_LIKE='ubuntu debian'\n", "6.8.0", "apt-get install python3-bpfcc"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "5.14.0", "dnf install python3-bcc kernel-"),
        ("ID=fedora\n", "6.9.1", "dnf install python3-bcc kernel-devel-6.9.1"),
        ("ID=opensuse-leap\nID_LIKE='suse opensuse'\n", "6.4.0", "zypper install python3-bcc"),
        ("ID=arch\n", "6.9.1", "pacman -S python-bcc linux-headers"),
        (
            "ID=ubuntu\nID_LIKE=debian\n",
            "5.15.148-tegra",
            "apt-get install python3-bpfcc nvidia-l4t-kernel-headers",
        ),
        ("ID=unheard-of\n", "6.9.1", "install BCC with its Python module and the headers of"),
        ("# empty\n", "6.9.1", "install BCC with its Python module and the headers of"),
    ],
)
def test_packages_are_those_of_the_distribution(tmp_path, os_release, release, hint):
    """By its own name or by those that it is like; NVIDIA's boards have headers of their own."""
    path = tmp_path / "os-release"
    path.write_text(os_release)

    assert install_hint(release, os_release=path).startswith(hint)


def test_named_headers_come_first(host, monkeypatch, tmp_path):
    """BCC_KERNEL_SOURCE is BCC's own variable; the packed headers of the kernel come last."""
    packed = host.root / "sys" / "kernel" / "kheaders.tar.xz"
    packed.parent.mkdir(parents=True)
    packed.touch()
    assert find_headers(RELEASE, host.root) == str(packed)

    add_headers(host)
    named = tmp_path / "named"
    (named / "include" / "linux").mkdir(parents=True)
    (named / "include" / "linux" / "kconfig.h").touch()
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(named))
    assert find_headers(RELEASE, host.root) == str(named)
