"""What a wheel and an sdist hold, and that they are the same whenever they are built."""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from tests.packaging.wheel import ROOT, build


@pytest.fixture(scope="module", autouse=True)
def tools():
    for tool in ("clang", "make"):
        if not (shutil.which(tool) or shutil.which(f"{tool}-14")):
            pytest.skip(f"{tool} is not installed, so that no wheel can be built")


@pytest.fixture(scope="module")
def opened(wheel):
    with zipfile.ZipFile(wheel) as archive:
        yield archive


def metadata(archive, name):
    (path,) = (n for n in archive.namelist() if n.endswith(f".dist-info/{name}"))
    return Parser().parsestr(archive.read(path).decode())


def test_objects_for_both_architectures_are_inside(opened):
    """
    The wheel has BPF programs for x86_64 and for aarch64, for kernels with BTF and for those
    without, wherever it was built.
    """
    objects = [name for name in opened.namelist() if name.endswith(".bpf.o")]

    assert sorted(objects) == [
        "otel_gpu/_bpf/otel_gpu.aarch64.bpf.o",
        "otel_gpu/_bpf/otel_gpu.aarch64.nobtf.bpf.o",
        "otel_gpu/_bpf/otel_gpu.x86_64.bpf.o",
        "otel_gpu/_bpf/otel_gpu.x86_64.nobtf.bpf.o",
    ]
    for name in objects:
        with opened.open(name) as file:
            assert ELFFile(file)["e_machine"] == "EM_BPF"


def test_what_programs_load_is_inside_for_this_architecture(opened):
    """Libraries that need nothing but libc."""
    symbols: set[str] = set()
    names = [name for name in opened.namelist() if "/_preload/" in name]

    assert {name.removeprefix("otel_gpu/_preload/") for name in names} >= {
        f"{name}.{platform.machine()}.so"
        for name in ("thread_context", "libotel_gpu_marks", "libotel_gpu_nvtx", "otel_gpu_preload")
    }
    for name in names:
        with opened.open(name) as file:
            library = ELFFile(file)
            symbols |= {one.name for one in library.get_section_by_name(".dynsym").iter_symbols()}
            tags = library.get_section_by_name(".dynamic").iter_tags()
            needed = {tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"}
            # The others are empty since glibc 2.34, and have a part of it before.
            assert needed <= {"libc.so.6", "libdl.so.2", "libpthread.so.0"}
    assert {"otel_thread_ctx_v1", "otel_gpu_publish_context", "otel_gpu_clear_context"} <= symbols
    assert {"otel_gpu_step", "InitializeInjectionNvtx2", "otel_gpu_nvtx_range"} <= symbols
    assert {"otel_gpu_preload_thread", "otel_gpu_preload_call", "cudaLaunchKernel"} <= symbols


def test_the_command_is_started_by_a_script_that_is_not_pythons(opened):
    """An installer leaves it as it is, so that variables of Python do not end it."""
    (name,) = [name for name in opened.namelist() if name.endswith(".data/scripts/otel-gpu")]

    assert opened.read(name) == (ROOT / "deploy" / "otel-gpu.sh").read_bytes()
    assert opened.getinfo(name).external_attr >> 16 & 0o111 == 0o111
    assert [name for name in opened.namelist() if name.endswith("entry_points.txt")]


def test_nothing_is_inside_that_the_target_does_not_need(opened):
    """No tests, tools, caches or sources of BPF programs come along."""
    names = opened.namelist()

    assert {
        name.split("/")[0] for name in names if ".data/" not in name and "dist-info" not in name
    } == {"otel_gpu"}
    assert [n for n in names if re.search(r"\.(pyc|so\.[0-9]+\.[0-9]+|bpf\.[ch]|a)$", n)] == []
    assert [n for n in names if "__pycache__" in n or "test" in Path(n).name] == []


def test_no_path_of_the_machine_that_built_it_is_inside(opened, checkout):
    """Neither a user's name nor a folder of the build leaves the machine."""
    found = [
        name for name in opened.namelist() if str(checkout.parent).encode() in opened.read(name)
    ]

    assert found == []


def test_libbpf_and_what_it_needs_are_unmodified_copies_with_their_origin(opened):
    """Each library is byte by byte the Debian package's, listed after those that it needs."""
    listed = json.loads(opened.read("otel_gpu/_lib/manifest.json"))["libraries"]
    names = [entry["file"] for entry in listed]

    assert names[-1] == "libbpf.so.1"
    for place, entry in enumerate(listed):
        data = opened.read(f"otel_gpu/_lib/{entry['file']}")
        assert hashlib.sha256(data).hexdigest() == entry["sha256"]
        assert entry["source"].startswith("https://snapshot.debian.org/package/")
        with opened.open(f"otel_gpu/_lib/{entry['file']}") as file:
            tags = list(ELFFile(file).get_section_by_name(".dynamic").iter_tags())
        needed = {tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"}
        assert needed - set(names[:place]) <= {
            "libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"
        }  # fmt: skip


def test_every_licence_is_inside(opened):
    """Our own, that of the BPF programs, and for each bundled library its own and the GNU texts."""
    names = opened.namelist()
    listed = json.loads(opened.read("otel_gpu/_lib/manifest.json"))["libraries"]
    licences = {Path(name).name for name in names if name.startswith("otel_gpu/_lib/licences/")}
    readme = opened.read("otel_gpu/_lib/README").decode()

    assert {n.split("dist-info/licenses/")[1] for n in names if "dist-info/licenses/" in n} == {
        "LICENSE", "NOTICE", "bpf/LICENSE"
    }  # fmt: skip
    assert {f"{entry['package']}.copyright" for entry in listed} < licences
    assert {"GPL-2", "GPL-3", "LGPL-2.1", "LGPL-3"} <= licences
    assert [entry["file"] for entry in listed if entry["source"] not in readme] == []


def test_the_tag_names_the_newest_glibc_that_the_libraries_use(opened, wheel, tmp_path):
    """pip installs the wheel only where the bundled libraries can be loaded."""
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("objdump, an independent reader of symbol versions, is not installed")
    versions = [(2, 17)]
    for name in opened.namelist():
        if re.match(r"otel_gpu/_(lib|preload)/[^/]*\.so", name):
            opened.extract(name, tmp_path)
            listed = subprocess.run(
                [objdump, "-T", tmp_path / name], capture_output=True, text=True, check=True
            )
            versions += [
                (int(major), int(minor))
                for major, minor in re.findall(r"\bGLIBC_(\d+)\.(\d+)", listed.stdout)
            ]
    tag = "py3-none-manylinux_{}_{}_{}".format(*max(versions), platform.machine())

    assert len(versions) > 10
    assert metadata(opened, "WHEEL")["Tag"] == tag
    assert metadata(opened, "WHEEL")["Root-Is-Purelib"] == "false"
    assert wheel.name.endswith(f"-{tag}.whl")


def differences(one, other):
    """The files of two archives that are not the same."""
    with zipfile.ZipFile(one) as first, zipfile.ZipFile(other) as second:
        return [
            name
            for name in {*first.namelist(), *second.namelist()}
            if name not in {*first.namelist()} & {*second.namelist()}
            or first.read(name) != second.read(name)
        ]


def test_a_wheel_without_libbpf_is_for_every_architecture(checkout, tmp_path):
    """A distribution that has its own libbpf builds one wheel for all its machines."""
    built = build("wheel", checkout, tmp_path / "dist", {"OTEL_GPU_WHEEL_LIBBPF": "none"})

    with zipfile.ZipFile(built) as archive:
        assert metadata(archive, "WHEEL")["Tag"] == "py3-none-any"
        assert [name for name in archive.namelist() if re.search("/(_lib|_preload)/", name)] == []
        assert "otel_gpu/_bpf/otel_gpu.aarch64.bpf.o" in archive.namelist()


@pytest.fixture(scope="module")
def unpacked(checkout, tmp_path_factory):
    """The source tree of an sdist."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build("sdist", checkout, folder / "dist")) as archive:
        archive.extractall(folder / "another folder", filter="data")
    (tree,) = (folder / "another folder").iterdir()
    return tree


def test_an_sdist_holds_every_source_and_nothing_that_was_built(unpacked):
    """Of the package, of the BPF programs, of tests and of units."""
    files = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}

    assert [name for name in files if name.endswith((".o", ".pyc", ".so.1"))] == []
    assert {
        "deploy/systemd/otel-gpu.service",
        "bpf/cuda/calls.bpf.c",
        "tests/stubs/cudart.c",
    } <= files


def test_two_builds_in_two_folders_are_the_same_bytes(wheel, unpacked, tmp_path):
    """From a checkout, or an sdist that has no objects: where, when and which umask leave no trace."""
    assert not list(unpacked.rglob("*.o"))
    before = os.umask(0o077)
    try:
        for path in (unpacked / "otel_gpu").rglob("*"):
            os.utime(path, (1, 1))
        again = build("wheel", unpacked, tmp_path / "dist", {"SOURCE_DATE_EPOCH": "1580601600"})
    finally:
        os.umask(before)

    assert again.name == wheel.name
    assert differences(wheel, again) == []
    assert again.read_bytes() == wheel.read_bytes()


def test_extras_pull_what_they_name_and_never_the_other_bcc(opened):
    """PyPI's ``bcc`` is not BCC: no extra may bring it."""
    requires = [str(value) for value in metadata(opened, "METADATA").get_all("Requires-Dist") or []]

    assert {re.split(r"[<>=; \[]", value)[0] for value in requires if "extra ==" in value} == {
        "mcp", "nvidia-ml-py", "opentelemetry-instrumentation", "pydantic", "uvicorn"
    }  # fmt: skip
    assert [value for value in requires if re.match(r"bcc\b", value)] == []
