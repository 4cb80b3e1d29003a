"""C++ names as text, and what a hostile name can do: nothing."""

import ctypes.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from otel_gpu.stacks.symbols import demangler_process, demangling
from otel_gpu.stacks.symbols.demangling import Demangler

pytestmark = pytest.mark.skipif(
    ctypes.util.find_library("stdc++") is None, reason="this host has no C++ library"
)


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def demangler(clock, monkeypatch):
    # An answer can take its time on a busy machine.
    monkeypatch.setattr(demangling, "_START_TIMEOUT_S", 60.0)
    monkeypatch.setattr(demangling, "_ANSWER_TIMEOUT_S", 60.0)
    demangler = Demangler(clock)
    yield demangler
    demangler.close()


def doubling(steps):
    """Return the name of a function of types that hold the ones before them twice."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    name = "_Z1f1PI1A1AE"
    for step in range(1, steps + 1):
        last = digits[step // 36] + digits[step % 36] if step >= 36 else digits[step]
        name += f"S_IS{last}_S{last}_E"
    return name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("_ZN2at6native3addERKNS_6TensorES3_", "at::native::add(at::Tensor const&, at::Tensor const&)"),
        ("_ZNSt6vectorIiSaIiEE9push_backERKi", "std::vector<int, std::allocator<int> >::push_back(int const&)"),
        ("_ZN3foo3barEv.cold", "foo::bar() [clone .cold]"),
        (
            "_ZN4core3fmt5Write9write_str17h0123456789abcdefE",
            "core::fmt::Write::write_str::h0123456789abcdef",
        ),
    ],
)  # fmt: skip
def test_mangled_names_become_text(demangler, name, text):
    """Also what Rust mangled as C++ does."""
    assert demangler.text(name) == text


@pytest.mark.parametrize(
    "name",
    [
        "",
        "main",
        "cudaLaunchKernel",
        "_Zbroken",
        "_RNvC5crate3foo",
        "_Z",
        "_ZN3foo\n3barEv",
        "_Zé",
        "_Z1f" + "P" * 9000,
    ],
)
def test_what_is_not_mangled_stays_as_it_is(demangler, name):
    """So does what is too long, and what no compiler writes."""
    assert demangler.text(name) == name


def test_nothing_is_started_before_there_is_a_name(demangler):
    """C and Rust get no help."""
    demangler.text("main")
    demangler.text("_RNvC5crate3foo")

    assert demangler._process is None


def test_a_long_text_is_cut(demangler):
    """At the size of a pipe's smallest piece."""
    text = demangler.text(doubling(20))

    assert text.startswith("f(P<A, A>, P<A, A>, P<P<A, A>, P<A, A> >, ")
    assert len(text) == 4095


def test_a_name_without_end_is_given_up(demangler, clock, monkeypatch):
    """Its text would have a thousand million characters. For five seconds nothing else is tried."""
    demangler.text("_ZN3foo3barEv")
    with monkeypatch.context() as patch:
        patch.setattr(demangling, "_ANSWER_TIMEOUT_S", 0.01)
        assert demangler.text(doubling(60)) == doubling(60)
    assert demangler.text("_ZN3foo3barEv") is None
    assert demangler.text("main") == "main"
    clock.now_s += 5.1
    assert demangler.text("_ZN3foo3barEv") == "foo::bar()"


@pytest.mark.parametrize("name", ["_Z1f" + "P" * 4000 + "i", "_Z1f" + "N1a" * 1300 + "E" * 90])
def test_deep_names_are_demangled_or_not(demangler, clock, name):
    """Where it ends the process, the next name has another."""
    assert demangler.text(name) is not None
    clock.now_s += 5.1
    assert demangler.text("_ZN3foo3barEv") == "foo::bar()"


def test_a_process_that_has_ended_is_started_again(demangler, monkeypatch, tmp_path):
    """It ends when nobody has asked for a minute; that is no failure."""
    program = tmp_path / "program.py"
    text = Path(demangler_process.__file__).read_text()
    program.write_text(text.replace("_IDLE_S = 60.0", "_IDLE_S = 0.2"))
    monkeypatch.setattr(demangling, "_PROGRAM", program)
    assert demangler.text("_ZN3foo3barEv") == "foo::bar()"
    first = demangler._process

    assert first.wait() == 0
    assert demangler.text("_ZN3foo3bazEv") == "foo::baz()"
    assert demangler._process is not first


def test_the_process_has_no_rights_and_no_secrets(demangler, monkeypatch):
    """A name that takes it over has taken over nothing."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret")
    demangler.text("_ZN3foo3barEv")
    folder = Path("/proc") / str(demangler._process.pid)
    limits = (folder / "limits").read_text()
    status = dict(
        line.split(":\t", 1)
        for line in (folder / "status").read_text().splitlines()
        if ":\t" in line
    )

    assert int(limits.partition("Max address space")[2].split()[0]) == 256 << 20
    assert limits.partition("Max open files")[2].split()[0] == "0"
    if os.geteuid() == 0:
        assert set(status["Uid"].split()) == {"65534"}
        assert int(status["CapEff"], 16) == 0
        assert status["Seccomp"].strip() == "2"
        assert b"secret" not in (folder / "environ").read_bytes()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give capabilities away")
def test_nor_has_that_of_an_agent_that_cannot_become_another_user():
    """As one that gave up its capabilities: the filter of system calls is what is left."""
    ask = """
from otel_gpu.capture.privileges import CAPTURE_CAPABILITIES, give_up_privileges
from otel_gpu.stacks.symbols.demangling import Demangler
give_up_privileges(CAPTURE_CAPABILITIES)
demangler = Demangler()
print(demangler.text("_ZN3foo3barEv"))
for line in open(f"/proc/{demangler._process.pid}/status"):
    if line.startswith(("Uid", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp:")):
        print(*line.split()[:2])
demangler.close()
"""
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)

    name, *status = done.stdout.splitlines()
    assert name == "foo::bar()"
    found = dict(line.split() for line in status)
    assert found.pop("CapBnd:") == "000001c400080004"
    assert found == {"Uid:": "0", "CapPrm:": "0" * 16, "NoNewPrivs:": "1", "Seccomp:": "2"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give capabilities away")
def test_nor_has_that_of_an_agent_that_is_not_root():
    """Neither the capabilities of a service nor those of a container reach it."""
    ask = """
import os, subprocess, sys
asked = subprocess.Popen([sys.executable, "-I", "-S", "-B", sys.argv[1]], stdin=-1, stdout=-1)
asked.stdin.write(b"_ZN3foo3barEv\\n")
asked.stdin.flush()
asked.stdout.readline()
for pid in ("self", asked.pid):
    with open(f"/proc/{pid}/status") as file:
        print(*(line.split()[1] for line in file if line.startswith(("CapPrm", "CapAmb"))))
asked.kill()
"""
    given = "+sys_ptrace,+dac_read_search"
    setpriv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    setpriv += [f"--inh-caps={given}", f"--ambient-caps={given}"]
    # Root's own folders may be closed to that user, but not to these capabilities.
    python = os.path.realpath(sys.executable)
    done = subprocess.run(
        [*setpriv, python, "-c", ask, demangler_process.__file__],
        capture_output=True,
        text=True,
        check=True,
    )

    own, asked = done.stdout.splitlines()
    assert own.split() == ["0000000000080004"] * 2
    assert asked.split() == ["0000000000000000"] * 2


def test_without_a_cpp_library_names_stay_mangled(demangler, clock, monkeypatch, tmp_path):
    """And nobody asks again."""
    program = tmp_path / "program.py"
    program.write_text(f"raise SystemExit({demangler_process.NO_DEMANGLER})")
    monkeypatch.setattr(demangling, "_PROGRAM", program)

    assert demangler.text("_ZN3foo3barEv") == "_ZN3foo3barEv"
    monkeypatch.undo()
    clock.now_s += 60
    assert demangler.text("_ZN3foo3barEv") == "_ZN3foo3barEv"
    assert demangler._process is None


def test_without_an_interpreter_names_stay_mangled(clock, monkeypatch):
    """A frozen program knows of none."""
    monkeypatch.setattr(sys, "executable", "")
    assert Demangler(clock).text("_ZN3foo3barEv") == "_ZN3foo3barEv"

    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert Demangler(clock).text("_ZN3foo3barEv") == "_ZN3foo3barEv"


def test_a_closed_demangler_leaves_no_process(demangler):
    """Nor a zombie."""
    demangler.text("_ZN3foo3barEv")
    process = demangler._process
    demangler.close()
    demangler.close()

    assert process.returncode is not None
