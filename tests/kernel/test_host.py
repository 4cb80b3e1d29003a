"""A host that cannot do it: one clear message, what to do about it, and the documented code."""

import shutil
from pathlib import Path

import pytest

from tests.kernel.agent import Agent, Finished
from tests.receiver import OtlpReceiver

pytestmark = pytest.mark.kernel


def in_mounts(*setup: str) -> list[str]:
    """A command that runs another where mounts were changed for it alone."""
    return ["unshare", "--mount", "sh", "-c", f'{" && ".join(setup)} && exec "$@"', "sh"]


def run_true(receiver: OtlpReceiver, inside: list[str]) -> Finished:
    with Agent(receiver, ["sh", "-c", "echo '{}'"], inside=inside) as agent:
        return agent.wait()


def assert_one_clear_message(finished: Finished, *words: str) -> None:
    assert finished.returncode == 1
    assert "Traceback" not in finished.stderr
    assert finished.stderr.count("otel-gpu: error:") == 1
    assert "hint:" in finished.stderr
    for word in words:
        assert word in finished.stderr
    # What could not be watched was not run either.
    assert finished.stdout == ""


def test_without_capabilities_it_says_which_are_needed(receiver: OtlpReceiver) -> None:
    """Root without CAP_BPF is no root for us."""
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv (util-linux) is not installed")
    finished = run_true(receiver, ["setpriv", "--bounding-set=-all", "--inh-caps=-all"])

    assert_one_clear_message(finished, "CAP_BPF")


def test_without_btf_it_says_so(receiver: OtlpReceiver) -> None:
    """A kernel without type information cannot load the programs."""
    finished = run_true(receiver, in_mounts("mount -t tmpfs none /sys/kernel/btf"))

    assert_one_clear_message(finished, "BTF")


def test_without_libbpf_it_says_what_to_install(receiver: OtlpReceiver) -> None:
    """The library is named, and the package that has it."""
    libraries = {path.resolve() for path in Path("/usr/lib").glob("**/libbpf.so.1*")}
    hide = [f"mount --bind /dev/null {path}" for path in sorted(libraries)]
    finished = run_true(receiver, in_mounts(*hide))

    assert_one_clear_message(finished, "libbpf")
