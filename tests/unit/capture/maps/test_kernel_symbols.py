"""Names of kernel functions, by address."""

import pytest

from otel_gpu.capture.maps.kernel_symbols import KernelSymbols

KALLSYMS = """\
0000000000000000 A fixed_percpu_data
ffffffff81000200 T do_futex
ffffffff81000100 t schedule
ffffffff81000180 D jiffies
ffffffff81000300 W weak_one
ffffffffc0000000 t nvidia_ioctl\t[nvidia]
ffffffffc0000100 b counter\t[nvidia]
"""


@pytest.fixture
def symbols(tmp_path):
    (tmp_path / "kallsyms").write_text(KALLSYMS)
    return KernelSymbols(tmp_path / "kallsyms")


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (0xFFFF_FFFF_8100_0100, "schedule"),
        (0xFFFF_FFFF_8100_01FF, "schedule"),
        (0xFFFF_FFFF_8100_0200, "do_futex"),
        (0xFFFF_FFFF_8100_0234, "do_futex"),
        (0xFFFF_FFFF_8100_0310, "weak_one"),
        (0xFFFF_FFFF_C000_0110, "nvidia_ioctl"),
    ],
)
def test_an_address_has_the_name_of_the_function_that_it_lies_in(symbols, address, name):
    """Whatever the order of the table; data is no function, and a module's name is left out."""
    assert symbols.name(address) == name


def test_functions_can_be_far_apart(tmp_path):
    """On some machines modules are more than 4 GiB from the kernel."""
    path = tmp_path / "kallsyms"
    path.write_text(f"ffff000081000200 T do_futex\n{KALLSYMS}")
    symbols = KernelSymbols(path)
    places = (0xFFFF_0000_8100_0210, 0xFFFF_FFFF_8100_0101, 0xFFFF_FFFF_C000_0001)

    assert [symbols.name(place) for place in places] == ["do_futex", "schedule", "nvidia_ioctl"]


@pytest.mark.parametrize("address", [0, 0x1000, 0xFFFF_FFFF_8100_00FF, 0xFFFF_FFFF_F000_0000])
def test_an_address_far_from_any_function_stays_one(symbols, address):
    """Before the first function, or a megabyte after one, is code that has no name here."""
    assert symbols.name(address) == hex(address)


@pytest.mark.parametrize(
    "text",
    [
        "0000000000000000 T schedule\n0000000000000000 T do_futex\n",
        "",
        "not a table\n",
        "xyz T schedule\n",
    ],
)
def test_hidden_addresses_leave_addresses(tmp_path, text):
    """Without CAP_SYSLOG all addresses read as 0; then no name is made up."""
    (tmp_path / "kallsyms").write_text(text)

    assert KernelSymbols(tmp_path / "kallsyms").name(0xFFFF_FFFF_8100_0100) == "0xffffffff81000100"


def test_a_kernel_without_a_table_leaves_addresses(tmp_path):
    """A kernel may be built without kallsyms."""
    assert KernelSymbols(tmp_path / "missing").name(0x1234) == "0x1234"


def test_compressed_names_are_the_same(tmp_path):
    """They take less memory, a part of them at a time."""
    path = tmp_path / "kallsyms"
    path.write_text(
        "".join(f"{0xFFFFFFFF81000000 + 16 * n:x} t some_function_{n}\n" for n in range(40_009))
    )
    symbols = KernelSymbols(path)
    places = range(0xFFFFFFFF81000000, 0xFFFFFFFF81000000 + 16 * 40_009, 997 * 16)
    before_bytes = 0
    for _ in range(4):
        assert [symbols.name(place) for place in places] == [
            f"some_function_{997 * n}" for n in range(len(places))
        ]
        before_bytes = before_bytes or symbols._size_bytes
        symbols.compress()
        symbols._known.clear()

    assert symbols._size_bytes < 0.8 * before_bytes


def test_the_table_is_read_once_and_when_it_is_needed(tmp_path):
    """It has a hundred thousand lines."""
    path = tmp_path / "kallsyms"
    symbols = KernelSymbols(path)
    path.write_text(KALLSYMS)

    assert symbols.name(0xFFFF_FFFF_8100_0200) == "do_futex"
    path.unlink()
    assert symbols.name(0xFFFF_FFFF_8100_0210) == "do_futex"
    assert symbols.name(0xFFFF_FFFF_8100_0101) == "schedule"


def test_a_table_that_hides_addresses_is_read_once(tmp_path):
    """Nothing comes of it, however often it is asked: what was hidden once stays so."""
    path = tmp_path / "kallsyms"
    path.write_text("0000000000000000 T schedule\n")
    symbols = KernelSymbols(path)

    assert symbols.name(0xFFFF_FFFF_8100_0100) == "0xffffffff81000100"
    path.write_text(KALLSYMS)
    assert symbols.name(0xFFFF_FFFF_8100_0200) == "0xffffffff81000200"


def test_the_scheduler_is_between_two_names_of_the_table(tmp_path):
    """The end is the first address that is none of its; without the names there is no such place."""
    path = tmp_path / "kallsyms"
    path.write_text(
        "ffffffff81000100 T __sched_text_start\nffffffff81000100 t __schedule\n"
        "ffffffff81000400 T __sched_text_end\nffffffff81000400 T do_futex\n"
    )
    symbols = KernelSymbols(path)
    offsets = (0x0FF, 0x100, 0x3FF, 0x400)

    inside = [symbols.is_scheduler(0xFFFF_FFFF_8100_0000 + offset) for offset in offsets]

    assert inside == [False, True, True, False]
    path.write_text(KALLSYMS)
    assert not KernelSymbols(path).is_scheduler(0xFFFF_FFFF_8100_0100)
