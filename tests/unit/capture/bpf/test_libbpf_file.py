"""Which libbpf is used where there are none, one or two."""

import json
import shutil
from pathlib import Path

import pytest

from otel_gpu.capture.bpf import libbpf_file
from otel_gpu.capture.bpf.libbpf_file import open_libbpf
from otel_gpu.errors import HostError


@pytest.fixture
def system():
    """The system's libbpf, as this host has it."""
    try:
        return open_libbpf()
    except HostError as error:
        pytest.skip(str(error))


@pytest.fixture
def bundle(tmp_path, system):
    """A folder like a wheel's."""
    shutil.copy(Path(system.path).resolve(), tmp_path / "libbpf.so.1")
    write_manifest(tmp_path, {"libraries": [{"file": "libbpf.so.1"}]})
    return tmp_path


def write_manifest(folder, document):
    text = document if isinstance(document, str) else json.dumps(document)
    (folder / "manifest.json").write_text(text)


def test_the_systems_is_used_where_there_are_two(bundle, system):
    """Updates of the system reach it, and not the bundled one."""
    found = open_libbpf(bundle)

    assert (found.path, found.version) == (system.path, system.version)
    assert not found.path.startswith(str(bundle))
    assert found.passed_over == ""


@pytest.mark.parametrize("name", ["libbpf.so.nowhere", "libc.so.6"])
def test_the_bundled_one_is_used_where_the_systems_cannot_be(bundle, system, monkeypatch, name):
    """Because there is none, or because what has its name is something else; why is kept."""
    monkeypatch.setattr(libbpf_file, "SYSTEM_NAME", name)
    found = open_libbpf(bundle)

    assert (found.path, found.version) == (f"{bundle}/libbpf.so.1", system.version)
    assert name in found.passed_over or "libbpf_major_version" in found.passed_over


def test_who_asks_again_is_told_the_same(bundle, system, monkeypatch):
    """The bundled one has the system's name from then on."""
    with monkeypatch.context() as hidden:
        hidden.setattr(libbpf_file, "SYSTEM_NAME", "libbpf.so.nowhere")
        found = open_libbpf(bundle)

    again = open_libbpf(bundle)
    assert again.path == found.path
    assert again.passed_over == found.passed_over != ""


def test_one_that_is_too_old_is_passed_over(bundle, system, monkeypatch):
    """The version is the library's own word. A bundled one that is too old is of no use either."""
    monkeypatch.setattr(libbpf_file, "MINIMUM_VERSION", (99, 0))
    with pytest.raises(HostError) as raised:
        open_libbpf(bundle)

    version = "{}.{}".format(*system.version)
    assert f"{system.path}: libbpf {version} is too old" in str(raised.value)
    assert f"{bundle}/libbpf.so.1: libbpf {version} is too old" in str(raised.value)


@pytest.mark.parametrize(
    "manifest",
    [
        "",
        "{",
        "[]",
        "7",
        '{"libraries": []}',
        '{"libraries": 7}',
        '{"libraries": [7]}',
        '{"libraries": [{"file": 7}]}',
        '{"libraries": [{"file": "missing.so"}]}',
        '{"libraries": [{"file": "manifest.json"}]}',
    ],
)
def test_a_damaged_installation_is_said(tmp_path, monkeypatch, manifest):
    """Whatever the folder holds, the error names both reasons and what to do."""
    monkeypatch.setattr(libbpf_file, "SYSTEM_NAME", "libbpf.so.nowhere")
    write_manifest(tmp_path, manifest)
    with pytest.raises(HostError) as raised:
        open_libbpf(tmp_path)

    assert "libbpf.so.nowhere" in str(raised.value)
    assert raised.value.hint.startswith("install otel-gpu again")


def test_without_any_the_packages_are_named(tmp_path, monkeypatch):
    """A checkout has no libbpf of its own: the system's package is what is missing."""
    monkeypatch.setattr(libbpf_file, "SYSTEM_NAME", "libbpf.so.nowhere")
    with pytest.raises(HostError) as raised:
        open_libbpf(tmp_path / "none")

    assert "libbpf1" in raised.value.hint
