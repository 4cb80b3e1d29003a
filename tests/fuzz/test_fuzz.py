"""Parsers of foreign bytes: what is valid, what broke one once, and a few changes of both."""

import os
import random
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.fuzz import driver
from tests.fuzz.mutation import mutate
from tests.fuzz.parsers_preload import Program
from tests.fuzz.target import CORPUS, Finding, Target, check

TARGETS = driver.load_targets()
_CHANGED = 20

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the kernel does not forget peaks of memory"
)


@pytest.mark.parametrize("name", TARGETS)
def test_a_valid_input_is_accepted(name, tmp_path):
    """So that what follows reaches the parser at all; of the seeds, some are attacks."""
    target = TARGETS[name]

    accepted = [check(target, data, driver.emptied(tmp_path)) for data in target.seeds()]

    assert any(accepted)


@pytest.mark.parametrize(
    ("name", "path"),
    [(name, path) for name, target in TARGETS.items() for path in target.corpus()],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_what_broke_a_parser_once(name, path, tmp_path):
    """It gives an answer now, or a documented error."""
    check(TARGETS[name], path.read_bytes(), tmp_path)


@pytest.mark.parametrize("name", TARGETS)
def test_changed_inputs_break_no_parser(name, tmp_path):
    """The same few each time; ``make fuzz`` tries others."""
    target, numbers = TARGETS[name], random.Random(name)  # noqa: S311 -- no secret
    inputs = target.inputs()

    for _ in range(_CHANGED):
        check(target, mutate(numbers, inputs, target.tokens), driver.emptied(tmp_path))


def test_each_folder_of_the_corpus_is_of_a_target():
    """So that none of its files is forgotten when a target gets another name."""
    assert {path.name for path in CORPUS.iterdir()} <= TARGETS.keys()


def fail(data, folder):
    if data.startswith(b"raise"):
        raise KeyError(data)
    if data.startswith(b"refuse"):
        raise ValueError(data)
    if data.startswith(b"spin"):
        while True:
            len(data)
    if data.startswith(b"wait"):
        time.sleep(60)
    if data.startswith(b"grow"):
        bytearray(b"\1") * (64 << 20)
    if data.startswith(b"huge"):
        bytearray(1 << 40)
    if data.startswith(b"end"):
        os.kill(os.getpid(), signal.SIGKILL)


def faulty(*seeds, cpu_s=60.0):
    return Target("faulty", lambda: seeds, fail, (ValueError,), cpu_s=cpu_s, memory_bytes=32 << 20)


@pytest.mark.parametrize(
    ("data", "place", "cpu_s"),
    [
        (b"raise", "KeyError", 60.0),
        (b"spin", "TooSlow", 0.2),
        (b"wait", "TooSlow", 0.2),
        # New memory can take the kernel longer than the bound of the others.
        (b"grow", "TooLarge", 60.0),
        (b"huge", "MemoryError", 60.0),
    ],
)
def test_a_broken_promise_is_a_finding(data, place, cpu_s, tmp_path, monkeypatch):
    """Another error, too much time on a CPU or waiting, too much memory."""
    monkeypatch.setattr("tests.fuzz.target._WAITING_S", 0.5)

    with pytest.raises(Finding) as caught:
        check(faulty(cpu_s=cpu_s), data, tmp_path)

    assert caught.value.place.startswith(place)


FAULTY = """
#include "preload_main.h"
void run_input(const uint8_t *data, size_t size)
{
	volatile int sum = 0x7fffffff;
	if (size && data[0] == 'r')
		sum = data[size];
	if (size && data[0] == 'o')
		sum += (int)size;
	while (size && data[0] == 'w')
		;
}
"""


@pytest.mark.parametrize(
    ("data", "text"),
    [(b"read", "heap-buffer-overflow"), (b"overflow", "signed integer"), (b"wait", "not answer")],
)
def test_a_fault_in_c_is_a_finding(data, text, tmp_path, monkeypatch):
    """Memory that is not there, behaviour that is not defined, and no answer."""
    monkeypatch.setattr("tests.fuzz.parsers_preload._ANSWER_S", 2.0)
    (tmp_path / "faulty.c").write_text(FAULTY)
    with closing(Program(tmp_path / "faulty.c")) as program:
        target = Target("faulty", lambda: [b"fine"], program.parse)
        check(target, b"fine", tmp_path)

        with pytest.raises(Finding, match=text):
            check(target, data, tmp_path)

        check(target, b"fine", tmp_path)


def test_documented_errors_are_no_finding(tmp_path):
    """Nor is an answer."""
    assert not check(faulty(), b"refuse", tmp_path)
    assert check(faulty(), b"anything", tmp_path)


@pytest.mark.parametrize("data", [b"raise" + bytes(500), b"end"])
def test_the_driver_keeps_what_it_finds(data, tmp_path, capfd):
    """As a small file, also when the process of the parser is gone; and it says so."""
    assert not driver.fuzz(faulty(b"fine", data), 0.1, corpus=tmp_path)

    (path,) = (tmp_path / "faulty").iterdir()
    assert path.read_bytes() == data.rstrip(b"\0")
    assert str(path) in capfd.readouterr().out


def test_the_driver_finds_nothing_in_a_good_parser(tmp_path, capfd):
    """And says how much it tried."""
    assert driver.fuzz(faulty(b"fine"), 0.1, corpus=tmp_path)

    assert not (tmp_path / "faulty").exists()
    assert "accepted, 0 found" in capfd.readouterr().out
