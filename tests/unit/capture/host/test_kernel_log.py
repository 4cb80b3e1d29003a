"""The kernel's log: which lines of it count, and what they say."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu.capture.host.kernel_log import (
    MAX_TEXT,
    PATH,
    KernelLog,
    Xid,
    format_bus_id,
    parse_xid,
)

FELL_OFF = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, name=python3, GPU has fallen off the bus."


@pytest.fixture
def pipe(tmp_path):
    """A log, and what writes lines of it, each by its priority and text."""
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    log = KernelLog(str(path))
    fd = os.open(path, os.O_WRONLY)
    numbers = iter(range(100, 10**6))

    def write(text, *, priority=4, number=None, flags="-"):
        number = next(numbers) if number is None else number
        os.write(fd, f"{priority},{number},34599066974,{flags};{text}\n".encode())

    yield log, write
    os.close(fd)
    log.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FELL_OFF, Xid(79, "0000:3b:00", 4242, "python3", "GPU has fallen off the bus.")),
        (
            "NVRM: Xid (PCI:0000:3B:00): 79, GPU has fallen off the bus.",
            Xid(79, "0000:3b:00", 0, "", "GPU has fallen off the bus."),
        ),
        (
            "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9).",
            Xid(94, "0000:01:00", 7194, "", "Contained: CE User Channel (0x9)."),
        ),
        (
            "NVRM: Xid (PCI:0000:01:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable error",
            Xid(48, "0000:01:00", 0, "", "An uncorrectable error"),
        ),
        (
            "NVRM: Xid (PCI:0001:00:1E.0): 31, pid='1234', name=a b, Ch 00000010",
            Xid(31, "0001:00:1e", 1234, "a b", "Ch 00000010"),
        ),
        ("NVRM: Xid (PCI:0000:01:00): 13", Xid(13, "0000:01:00")),
        # A program that calls itself as another one's line is still the process that it is.
        (
            "NVRM: Xid (PCI:0000:01:00): 31, pid=7, name=x, pid=1, name=, MMU Fault",
            Xid(31, "0000:01:00", 7, "x", "pid=1, name=, MMU Fault"),
        ),
    ],
)
def test_what_a_line_says(text, said):
    """By the spellings of several drivers."""
    assert parse_xid(text) == said


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:[1234]: segfault at 0 ip 0",
        "x NVRM: Xid (PCI:0000:3b:00): 79, pid=1",
        "NVRM: Xid (PCI:0000:3b:00): seventy-nine",
        "NVRM: Xid (PCI:zz:3b:00): 79",
        "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed!",
        r"comm\x0aNVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x",
        "NVRM: Xid (PCI:0000:3b:00): 9999999999, pid=1",
        "NVRM: Xid (PCI:0000:3b:00): ٧٩, pid=1",
        "",
    ],
)
def test_what_only_looks_like_one_says_nothing(text):
    """As names of programs in other messages, which the kernel puts in front."""
    assert parse_xid(text) is None


def test_only_the_kernel_itself_is_believed(pipe):
    """Lines of user programs have a facility that is not 0, whatever else they say."""
    log, write = pipe
    for facility in (1, 3, 16, 31):
        for level in range(8):
            write(FELL_OFF, priority=facility << 3 | level)
    assert list(log.read()) == []
    for level in range(8):
        write(FELL_OFF, priority=level)
    assert [xid.pid for xid in log.read()] == [4242] * 8


def test_what_a_record_has_beside_its_line_is_no_line(pipe):
    """The dictionary of a record, whose values a device's driver may choose."""
    log, write = pipe
    write("usb 1-1: new device\n SUBSYSTEM=usb\n 4,7,8,-;" + FELL_OFF)
    write(FELL_OFF, flags="c,caller=T17")
    assert len(list(log.read())) == 1


@pytest.mark.parametrize("line", [b"", b";", b"4;x", b"4,x,1,-;x", b"\xff\xfe,1;", b"4,1,2,-"])
def test_broken_lines_are_passed_over(pipe, line):
    """One after another comes all the same."""
    log, write = pipe
    write("x\n" + line.decode("latin-1"))
    write(FELL_OFF)
    assert len(list(log.read())) == 1


@settings(max_examples=200, deadline=None)
@given(st.text() | st.from_regex(r"NVRM: Xid \(PCI:.{0,40}\): .{0,40}"))
def test_whatever_a_line_says_is_read_or_not(text):
    """And what is read of it has its bounds."""
    said = parse_xid(text)
    if said is not None:
        assert 0 <= said.xid < 10**9
        assert 0 <= said.pid < 10**9
        assert max(map(len, (said.bus_id, said.name, said.message))) <= MAX_TEXT


def test_lines_that_are_gone_are_counted(pipe):
    """By their numbers."""
    log, write = pipe
    write("first", number=10)
    write(FELL_OFF, number=18)
    assert len(list(log.read())) == 1
    assert log.overrun == 7


def test_only_what_is_new_is_read(tmp_path):
    """Of a file, as of the log itself."""
    path = tmp_path / "kmsg"
    line = f"4,1,2,-;{FELL_OFF}\n"
    path.write_text(line)
    log = KernelLog(str(path))
    assert list(log.read()) == []
    with path.open("a") as file:
        file.write(line.replace("4,1", "4,2"))
    assert len(list(log.read())) == 1
    assert list(log.read()) == []


@pytest.mark.parametrize("path", ["", "/nowhere/kmsg"])
def test_a_log_that_cannot_be_read_says_nothing(path):
    """As in a container, or without CAP_SYSLOG."""
    log = KernelLog(path)
    assert list(log.read()) == []
    assert not log.is_open


@pytest.mark.skipif(not os.access(PATH, os.R_OK), reason="needs the kernel's log")
def test_the_kernels_own_log_is_read_without_waiting():
    """As far as it can be: nobody but the kernel can write what counts."""
    log = KernelLog()
    list(log.read())
    log.close()


def test_places_are_told_alike():
    """NVML has longer domains, and the function of the device."""
    assert format_bus_id("00000000:4E:00.0") == format_bus_id("0000:4e:00") == "0000:4e:00"
