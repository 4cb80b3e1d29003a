"""What is known of process images."""

import ctypes
import os
import subprocess
import sys
import time

import pytest

from otel_gpu import wire
from otel_gpu.procfs.mapped_files import FileId, MappedFile, mapped_files
from otel_gpu.stacks.resolved_programs import MAX_REMEMBERED, MappedPrograms

QSORT = ctypes.cast(ctypes.CDLL(None).qsort, ctypes.c_void_p).value
KTIME_NS = 77
SELF = (os.getpid(), KTIME_NS)
NOBODY = 4_194_304  # one more than the largest pid


@pytest.fixture
def images():
    images = MappedPrograms(lambda _pid: KTIME_NS)
    yield images
    images.close()


class SlowLooks:
    """A clock, and when a process was asked what it maps, which takes a millisecond by it."""

    def __init__(self, images, monkeypatch):
        self.now_s = 1_000.0
        self.at_s = []
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(images.get(SELF).mappings, "refresh", self.look)

    def look(self):
        self.now_s += 0.001
        self.at_s.append(self.now_s)


def mapped(path, number=1):
    return MappedFile(1, FileId(8, number), 0x1000, 0x2000, path)


def module(image, address=QSORT):
    mapping = image.find(address)
    return mapping and mapping.path.rpartition("/")[2]


def test_an_image_is_met_when_it_is_asked_for(images):
    """A process that nobody introduced is looked at when its first stack comes."""
    assert module(images.get(SELF)) == "libc.so.6"
    assert images.get(SELF) is images.get(SELF)


def test_a_pid_that_has_another_program_now(images):
    """Records of an image that is not its process's any more learn nothing of the new one."""
    assert module(images.get((os.getpid(), KTIME_NS - 1))) is None


def test_an_image_that_ended_before_it_was_met(images):
    """The same is true of one whose end was told, whoever has its pid."""
    images.end(SELF)

    assert module(images.get(SELF)) is None


def test_what_was_known_of_an_image_outlives_its_process(images):
    """A process that dies right after a call still gets the stack of that call."""
    process = subprocess.Popen(
        [sys.executable, "-c", "print(1); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.stdout.readline()
    image = (process.pid, KTIME_NS)
    images.learn(image, list(mapped_files(process.pid)))
    starts = [file.start for file in mapped_files(process.pid) if file.name == "libc.so.6"]
    process.communicate(b"\n")
    images.end(image)

    assert module(images.get(image), starts[0]) == "libc.so.6"


def test_a_forked_child_that_is_gone_has_what_its_parent_has(images):
    """A child, and a child of that, that cannot be looked at any more."""
    child, grandchild = (NOBODY, KTIME_NS), (NOBODY + 1, KTIME_NS)
    images.learn(SELF, [mapped("/opt/libcudart.so.12")])
    images.inherit(SELF, child)
    images.inherit(child, grandchild)
    images.end(grandchild)

    for image in (child, grandchild):
        assert module(images.get(image)) == "libc.so.6"
        assert images.get(image).library(wire.LAYER_RUNTIME) == "libcudart.so.12"


def test_a_child_of_an_image_that_is_not_known(images):
    """Is looked at by itself."""
    images.inherit((NOBODY, KTIME_NS), SELF)

    assert module(images.get(SELF)) == "libc.so.6"


def test_the_libraries_of_an_image(images):
    """The name of the CUDA library of each layer, and none where there are several."""
    image = images.get(SELF)
    assert image.library(wire.LAYER_RUNTIME) == ""

    images.learn(SELF, [mapped("/opt/libcudart.so.12"), mapped("/usr/libcuda.so.1", 2)])
    assert image.library(wire.LAYER_RUNTIME) == "libcudart.so.12"
    assert image.library(wire.LAYER_DRIVER) == "libcuda.so.1"

    images.learn(SELF, [mapped("/opt/libcudart.so.12"), mapped("/usr/libcudart-1.so", 3)])
    assert image.library(wire.LAYER_RUNTIME) == ""
    assert image.library(wire.LAYER_DRIVER) == ""


def test_a_new_library_makes_a_new_generation(images):
    """What was found before it was loaded may be wrong after it; the same files change nothing."""
    images.learn(SELF, [mapped("/opt/libcudart.so.12")])
    first = images.get(SELF).generation
    images.learn(SELF, [mapped("/opt/libcudart.so.12")])
    assert images.get(SELF).generation == first

    images.learn(SELF, [mapped("/opt/libcudart.so.12"), mapped("/opt/extension.so", 2)])
    assert images.get(SELF).generation != first


def test_libraries_that_are_loaded_later(images, monkeypatch):
    """
    A process is looked at again a tenth of a second after it was met, then twice as long after
    that, and so on for half a minute: what it loads is known even if nobody asks for it
    before it ends.
    """
    now_s = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    image = images.get(SELF)
    looked = []
    monkeypatch.setattr(image.mappings, "refresh", lambda: looked.append(round(now_s - 1_000, 1)))

    for _ in range(600):
        images.ask_due()
        now_s += 0.1

    assert looked == [0.1, 0.3, 0.7, 1.5, 3.1, 6.3, 12.7, 25.5]


def test_a_library_that_was_told_of(images, monkeypatch):
    """The process is looked at at once, and then as after its beginning."""
    now_s = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    image = images.get(SELF)
    looked = []
    monkeypatch.setattr(image.mappings, "refresh", lambda: looked.append(round(now_s - 1_000, 1)))
    for step in range(100):
        if step == 50:
            images.hurry(SELF)
        images.ask_due()
        now_s += 0.1

    assert looked == [0.1, 0.3, 0.7, 1.5, 3.1, 5.0, 5.2, 5.6, 6.4, 8.0]
    images.hurry((NOBODY, KTIME_NS))
    assert len(images._programs) == 1


def test_an_address_that_is_not_known_is_asked_for_at_once(images, monkeypatch):
    """Code may have been made just now; once asked too often, the process is left alone."""
    looks = SlowLooks(images, monkeypatch)
    for _ in range(1_000):
        assert images.get(SELF).find(0) is None

    assert 50 <= len(looks.at_s) <= 55


def test_what_was_known_long_ago_is_asked_again(images, monkeypatch):
    """Where a library was, something else may be."""
    now_s = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    image = images.get(SELF)
    looked = []
    monkeypatch.setattr(image.mappings, "refresh", lambda: looked.append(now_s - 1_000))
    for _ in range(12):
        assert module(image) == "libc.so.6"
        now_s += 1

    assert looked == [5, 10]


def test_looking_at_processes_takes_little_time(images, monkeypatch):
    """
    Where it takes a millisecond each, a process that loads libraries all the time is looked at
    fifty times, and then as often as two hundredths of the time allow.
    """
    looks = SlowLooks(images, monkeypatch)
    for _ in range(10_000):
        images.hurry(SELF)
        images.ask_due()
        looks.now_s += 0.001

    assert 50 <= len([at_s for at_s in looks.at_s if at_s < 1_000.11]) <= 55
    assert 240 <= len(looks.at_s) <= 260


def test_images_are_forgotten_a_while_after_their_end(images):
    """A second later, in the order of their ends."""
    other = (NOBODY, KTIME_NS)
    images.get(SELF)
    images.end(other)
    images.end(SELF)
    now_s = time.monotonic()

    assert images.drop_ended(now_s) == []
    assert images.drop_ended(now_s + 4) == [other, SELF]
    assert len(images._programs) == 0


def test_an_image_that_its_process_is_not_any_more_has_ended(images):
    """Also where nobody reported that; so has a forked child that was never asked for."""
    gone, child = (NOBODY, KTIME_NS), (NOBODY + 1, KTIME_NS)
    images.get(SELF)
    images.get(gone)
    images.inherit(SELF, child)
    images.end_others({SELF[0]: KTIME_NS, NOBODY: KTIME_NS + 1})

    assert images.drop_ended(time.monotonic() + 11) == [gone, child]
    assert len(images._programs) == 1


def test_no_more_than_512_images_are_known(images):
    """Each holds a file open; the one not asked for the longest time goes."""
    for number in range(600):
        images.get((NOBODY + number, KTIME_NS))
        images.get((NOBODY, KTIME_NS))

    assert len(images._programs) == 512


def test_what_is_remembered_of_children_and_of_ends_is_bounded(images):
    """Of a storm of short processes the oldest are forgotten first."""
    images.get(SELF)
    for pid in range(NOBODY, NOBODY + MAX_REMEMBERED + 100):
        images.inherit(SELF, (pid, KTIME_NS))
    assert len(images._parents) == MAX_REMEMBERED

    for pid in range(NOBODY, NOBODY + MAX_REMEMBERED + 100):
        images.end((pid, KTIME_NS))
    assert len(images._ended_s) == MAX_REMEMBERED
    assert len(images.drop_ended(time.monotonic() + 11)) == MAX_REMEMBERED
    assert images._parents == {}
