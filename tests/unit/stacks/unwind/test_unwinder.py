"""Native stacks, of programs that a compiler made for the test and of real libraries."""

import ctypes
import re
import shutil
import sqlite3
import struct
import subprocess
import threading

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.stacks.mappings import Mapping
from otel_gpu.stacks.unwind.unwinder import MAX_FRAMES, Registers, Unwinder
from tests.unit.stacks.stack_captures import Builder, Library, shown

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc builds the programs")

THREE_DEEP = """
NOINLINE int inner(int n) { NOTE(); return capture(n) + 1; }
NOINLINE int middle(int n) { NOTE(); return inner(n + 1) * 3; }
int outer(int n) { NOTE(); return middle(n + 1) - 1; }
"""
CALLER = """
extern int outer(int n);
int main(void) { NOTE(); return outer(1) < 0; }
"""
VARIABLE = """
NOINLINE int inner(int n)
{
    volatile char block[n];
    NOTE();
    block[n / 2] = 1;
    return capture(n) + block[n / 2];
}
NOINLINE int middle(int n)
{
    volatile char *block = alloca(n * 3);
    NOTE();
    block[n] = 2;
    return inner(n + 1) + block[n];
}
int outer(int n) { NOTE(); return middle(n + 100) - 1; }
"""
# Too many arguments for registers, an aligned local and alloca: rsp is realigned, and neither
# it nor rbp is a constant away from the CFA.
REALIGNED = """
NOINLINE int inner(int n, long a, long b, long c, long d, long e, long f, long g)
{
    __attribute__((aligned(64))) volatile char block[64];
    volatile char *more = alloca(n);
    NOTE();
    block[0] = more[0] = 1;
    return capture(n) + block[0] + more[0] + a + b + c + d + e + f + g;
}
NOINLINE int middle(int n) { NOTE(); return inner(n, 1, 2, 3, 4, 5, 6, n) + 1; }
int outer(int n) { NOTE(); return middle(n + 100) - 1; }
"""
TAIL_CALLS = """
NOINLINE int inner(int n) { NOTE(); return capture(n) + 1; }
NOINLINE int middle(int n) { return inner(n + 1); }
NOINLINE int next(int n) { return middle(n ^ 5); }
int outer(int n) { NOTE(); return next(n + 1) - 1; }
"""
RECURSION = """
int outer(int n) { return n == 7000 ? capture(n) : outer(n + 1) + 1; }
"""
CALLBACKS = """
static int compare(const void *a, const void *b)
{
    static int done;
    if (!done++)
        capture(1);
    return *(const int *)a - *(const int *)b;
}
static int find(const void *a, const void *b)
{
    int values[] = {3, 1, 2};
    qsort(values, 3, sizeof(*values), compare);
    return compare(a, b);
}
int outer(int n)
{
    int values[] = {1, 2, 3};
    return bsearch(&n, values, 3, sizeof(*values), find) == NULL;
}
"""
WITHOUT_TABLES = ("-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-exceptions")


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return Builder(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    return Library(tmp_path_factory.mktemp("library"))


def unwind(capture, stack=None, returns=None, unwinder=None):
    return (unwinder or Unwinder()).unwind(
        capture.registers, capture.stack if stack is None else stack, capture.find, returns or {}
    )


def assert_whole(walk, capture):
    """The walk is what glibc's unwinder says, to the beginning of the thread."""
    assert walk.addresses[0] == capture.registers.instruction_pointer
    assert walk.addresses[1:] == capture.backtrace[1:]
    assert (walk.complete, walk.method) == (True, "eh_frame")
    assert_stack_pointers(walk, capture)


def assert_stack_pointers(walk, capture):
    """Right below where a caller's stack ends is the address to which the call returns."""
    assert walk.stack_pointers[0] == capture.registers.stack_pointer
    for address, pointer in zip(walk.addresses[1:], walk.stack_pointers[1:], strict=True):
        at = pointer - 8 - capture.registers.stack_pointer
        assert struct.unpack_from("<Q", capture.stack, at) == (address,)


@pytest.mark.parametrize(
    ("source", "notes"),
    [
        pytest.param(THREE_DEEP, 5, id="three deep"),
        pytest.param(VARIABLE, 5, id="frames of variable size"),
        pytest.param(REALIGNED, 5, id="realigned stack"),
        pytest.param(TAIL_CALLS, 4, id="tail calls"),
        pytest.param(CALLBACKS, 2, id="callbacks of the C library"),
    ],
)
@pytest.mark.parametrize(
    "options",
    [
        ("-O2", "-fomit-frame-pointer"),
        ("-O2", "-fno-omit-frame-pointer"),
        ("-O0",),
        ("-O3", "-mavx2", "-fomit-frame-pointer"),
        ("-Os", "-fcf-protection"),
    ],
    ids=" ".join,
)
def test_every_frame_of_optimised_code_is_found(build, source, options, notes):
    """Through a library without frame pointers: each return address, to the thread's beginning."""
    library = build.library(source, *options)
    with shown(build.program(CALLER, library, f"-Wl,-rpath,{build.folder}", "-O2")) as capture:
        walk = unwind(capture)

    assert_whole(walk, capture)
    if source != TAIL_CALLS or "-O0" not in options:
        assert len(capture.notes) == notes
    assert set(capture.notes) <= set(walk.addresses)


@pytest.mark.parametrize(
    ("source", "options"),
    [
        pytest.param(THREE_DEEP, ("-O2", "-fomit-frame-pointer"), id="three deep"),
        pytest.param(VARIABLE, ("-O2",), id="frames of variable size"),
        pytest.param(REALIGNED, ("-O2",), id="realigned stack"),
        pytest.param(CALLBACKS, ("-O0",), id="callbacks of the C library"),
    ],
)
def test_what_was_walked_before_is_not_walked_again_if_it_is_the_same(build, source, options):
    """With each word changed of those that the walk depends on, it is as if nothing was known."""
    library = build.library(source, *options)
    tails = {}
    known = Unwinder()
    with shown(build.program(CALLER, library, f"-Wl,-rpath,{build.folder}", "-O2")) as capture:
        whole = unwind(capture)
        first, tail, new = known.unwind_to({}, capture.registers, capture.stack, capture.find)
        assert (first, tail) == (whole, None)
        for lookup, one in new:
            tails.setdefault(lookup, []).append(one)
        changed = [bytearray(capture.stack) for _ in whole.words]
        for stack, position in zip(changed, whole.words, strict=True):
            (word,) = struct.unpack_from("<Q", stack, 8 * position)
            struct.pack_into("<Q", stack, 8 * position, word + 8)
        plain = [unwind(capture, bytes(stack))[:3] for stack in changed]
        again = known.unwind_to(tails, capture.registers, capture.stack, capture.find)
        others = [
            known.unwind_to(tails, capture.registers, bytes(stack), capture.find)[0][:3]
            for stack in changed
        ]

    assert (again[0][:3], again[0].stack_pointers) == (whole[:3], whole.stack_pointers)
    assert again[1] is not None
    assert again[2] == ()
    assert others == plain


def test_the_compiler_does_what_the_tests_are_about(build):
    """A realigned stack is found through an expression, not a register and a constant."""
    library = build.library(REALIGNED, "-O2")
    tables = subprocess.run(
        ["readelf", "--debug-dump=frames", library], capture_output=True, text=True, check=True
    ).stdout

    assert re.search(
        r"DW_CFA_def_cfa_expression \(DW_OP_breg6 \(rbp\): -\d+; DW_OP_deref\)", tables
    )


@pytest.mark.parametrize("options", [("-no-pie", "-fno-pie"), ("-static-pie",)])
def test_any_kind_of_program_is_walked(build, options):
    """Also where addresses are absolute, and where all is one file."""
    with shown(build.program(THREE_DEEP + CALLER, "-O2", *options)) as capture:
        walk = unwind(capture)

    assert_whole(walk, capture)
    assert walk.addresses[1:6] == capture.notes[::-1]


def test_a_file_without_the_sorted_table_has_no_rows(build):
    """Linkers leave it out of static programs at a fixed address; it is not made here."""
    with shown(build.program(THREE_DEEP + CALLER, "-O2", "-static")) as capture:
        walk = unwind(capture)

    assert walk.addresses == (capture.registers.instruction_pointer,)
    assert (walk.complete, walk.method) == (False, "none")


def test_a_call_that_never_returns_is_in_its_caller(build):
    """The address after it is that of the next function already, which may have other rules."""
    program = build.program(
        """
        #define HERE NOINLINE __attribute__((section(".text.here")))
        __attribute__((noreturn)) HERE void stop(int n) { capture(n); exit(0); }
        HERE void caller(int n) { char block[400]; sprintf(block, "%d", n); stop(*block); }
        HERE int next(int n) { captured.noted[0] = next; return n + 1; }
        int main(void) { next(1); captured.notes++; caller(2); return 1; }
        """,
        *("-O2", "-fno-toplevel-reorder", "-falign-functions=1", "-fcf-protection=none"),
        *("-fno-stack-protector", "-fno-reorder-functions"),
    )
    with shown(program) as capture:
        walk = unwind(capture)

    assert walk.addresses[2] == capture.notes[0]  # of `next`
    assert_whole(walk, capture)


SIGNAL = """
static unsigned long interrupted;
static void on_signal(int number, siginfo_t *info, void *data)
{
    ucontext_t *context = data;
    captured.noted[captured.notes++] = (void *)context->uc_mcontext.gregs[REG_RIP];
    capture(number);
    context->uc_mcontext.gregs[REG_RIP] += 2;
}
/* A function without a frame that uses the red zone, and is interrupted at its first instruction. */
__asm__(".globl bottom\\n.type bottom, @function\\nnop\\n"
        "bottom: .cfi_startproc\\nud2\\nmov %edi, -8(%rsp)\\nmov -8(%rsp), %eax\\nret\\n"
        ".cfi_endproc\\n.size bottom, .-bottom");
extern int bottom(int);
static char other[1 << 17];
NOINLINE int work(int n) { return bottom(n) + 1; }
int main(int argc, char **argv)
{
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
    if (argc > 1) {
        stack_t stack = {.ss_sp = other, .ss_size = 1 << 16};
        sigaltstack(&stack, NULL);
        action.sa_flags |= SA_ONSTACK;
    }
    sigaction(SIGILL, &action, NULL);
    return work(argc) < 0;
}
"""


def test_a_walk_goes_through_a_signal_to_what_it_interrupted(build):
    """That called nobody, so its address is one more than glibc says: as of what comes after."""
    with shown(build.program(SIGNAL, "-O2", "-fomit-frame-pointer")) as capture:
        walk = unwind(capture)
        interrupted = capture.notes[0]
        expected = tuple(address + (address == interrupted) for address in capture.backtrace)

    assert interrupted in capture.backtrace
    assert walk.addresses[1:] == expected[1:]
    assert (walk.complete, walk.method) == (True, "eh_frame")


def test_a_signal_on_a_stack_of_its_own_ends_the_walk(build):
    """What it interrupted is told; the stack of that was not copied."""
    with shown(build.program(SIGNAL, "-O2"), "other") as capture:
        walk = unwind(capture)

    assert walk.addresses[-1] == capture.notes[0] + 1
    assert walk.addresses[1:-1] == capture.backtrace[1 : len(walk.addresses) - 1]
    assert (walk.complete, walk.method) == (False, "eh_frame")
    assert walk.stack_pointers == ()


def test_a_thread_begins_where_it_was_cloned(build):
    """Its first function has no caller, and that is known."""
    program = build.program(
        """
        static void *run(void *data) { capture(1); return data; }
        int main(void)
        {
            pthread_t thread;
            pthread_create(&thread, NULL, run, NULL);
            pthread_join(thread, NULL);
            return 0;
        }
        """,
        *("-O2", "-pthread"),
    )
    with shown(program) as capture:
        walk = unwind(capture)

    assert_whole(walk, capture)


def test_frame_pointers_are_followed_where_there_are_no_tables(build):
    """The walk says so; from where there are tables again, they are used."""
    library = build.library(THREE_DEEP, "-O1", "-fno-omit-frame-pointer", *WITHOUT_TABLES)
    with shown(build.program(CALLER, library, f"-Wl,-rpath,{build.folder}", "-O2")) as capture:
        walk = unwind(capture)

    assert len(capture.backtrace) < 5
    assert walk.addresses[1:6] == capture.notes[::-1]
    assert (walk.complete, walk.method) == (True, "frame_pointer")
    assert_stack_pointers(walk, capture)


def test_tables_that_were_wiped_out_are_none(build):
    """The program's header still says where they should be."""
    library = build.library(THREE_DEEP, "-O1", "-fno-omit-frame-pointer")
    program = build.program(CALLER, library, f"-Wl,-rpath,{build.folder}", "-O2")
    content = bytearray(library.read_bytes())
    with library.open("rb") as stream:
        for name in (".eh_frame", ".eh_frame_hdr"):
            section = ELFFile(stream).get_section_by_name(name)
            start, size = section["sh_offset"], section["sh_size"]
            content[start : start + size] = bytes(size)
    library.write_bytes(content)
    with shown(program) as capture:
        walk = unwind(capture)

    assert walk.addresses[1:6] == capture.notes[::-1]
    assert (walk.complete, walk.method) == (True, "frame_pointer")
    assert_stack_pointers(walk, capture)


def test_without_tables_and_frame_pointers_a_walk_ends(build):
    """What is in the register is no frame pointer, and what it points to no return address."""
    library = build.library(
        """
        NOINLINE int inner(int n) { NOTE(); return capture(n) + 1; }
        int outer(int n)
        {
            long words[4] = {n, (long)&n, (long)words, 3};
            register long *words_in_rbp __asm__("rbp") = words;
            int result;
            NOTE();
            __asm__ volatile("" : "+r"(words_in_rbp));
            result = inner(n);
            __asm__ volatile("" : "+r"(words_in_rbp));
            return result + words_in_rbp[3];
        }
        """,
        *("-O2", "-fomit-frame-pointer", *WITHOUT_TABLES),
    )
    with shown(build.program(CALLER, library, f"-Wl,-rpath,{build.folder}", "-O2")) as capture:
        walk = unwind(capture)

    assert walk.addresses == (capture.registers.instruction_pointer, capture.notes[-1])
    assert (walk.complete, walk.method) == (False, "eh_frame")


def test_code_made_at_run_time_is_crossed_by_frame_pointer(build):
    """It is in no file, so there is nothing to check its return address with but the mapping."""
    program = build.program(
        """
        #include <sys/mman.h>
        static const unsigned char code[] = {
            0x55, 0x48, 0x89, 0xe5, /* push %rbp; mov %rsp, %rbp */
            0xff, 0xd7, 0x5d, 0xc3, /* call *%rdi; pop %rbp; ret */
        };
        static void callback(void) { capture(1); }
        int main(void)
        {
            char *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            memcpy(page, code, sizeof(code));
            mprotect(page, 4096, PROT_READ | PROT_EXEC);
            captured.noted[captured.notes++] = page + 6;
            ((void (*)(void (*)(void)))page)(callback);
            return 0;
        }
        """,
        *("-O2", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"),
    )
    with shown(program) as capture:
        walk = unwind(capture)

    assert capture.notes[0] in walk.addresses
    assert (walk.complete, walk.method) == (True, "frame_pointer")


def test_a_deep_stack_is_cut_at_a_number_of_frames(build):
    """A recursion of 7,000: its innermost frames, and that it was not the whole."""
    with shown(build.program(RECURSION + CALLER, "-O1")) as capture:
        walk = unwind(capture)

    assert len(walk.addresses) == MAX_FRAMES == 256
    assert walk.addresses[1:] == capture.backtrace[1:256]
    assert not walk.complete


@pytest.mark.parametrize("words", [0, 1, 2, 5, 10, 20, 30])
def test_a_walk_ends_with_the_copy(build, words):
    """A part of the stack gives a part of the walk, which is not complete."""
    with shown(build.program(THREE_DEEP + CALLER, "-O2")) as capture:
        whole = unwind(capture)
        # A copy need not be whole words.
        part = unwind(capture, capture.stack[: 8 * words + 5])

    assert part.addresses == whole.addresses[: len(part.addresses)]
    assert (part.addresses == whole.addresses) == part.complete == (max(whole.words) < words)
    assert all(word < words for word in part.words)


@pytest.mark.parametrize("source", [THREE_DEEP, VARIABLE, REALIGNED, CALLBACKS])
def test_the_words_that_it_read_are_all_that_a_walk_depends_on(build, source):
    """Whatever else is on the stack, or in a frame pointer that is none, the walk is the same."""
    with shown(build.program(source + CALLER, "-O2")) as capture:
        whole = unwind(capture)
        words = struct.unpack_from(f"<{len(capture.stack) // 8}Q", capture.stack)
        others = [
            word if position in whole.words else ~word & (1 << 64) - 1
            for position, word in enumerate(words)
        ]
        changed = capture._replace(stack=struct.pack(f"<{len(others)}Q", *others))
        if not whole.uses_frame_pointer:
            changed = changed._replace(registers=capture.registers._replace(frame_pointer=1))

        assert unwind(changed) == whole


TRAMPOLINE = 0x7FFF_FFFF_E000


def with_trampoline(find, path="[uprobes]"):
    page = Mapping(TRAMPOLINE, TRAMPOLINE + 4096, 0, path, None, 0)
    return lambda address: page if TRAMPOLINE <= address < TRAMPOLINE + 4096 else find(address)


def replaced(capture, *addresses):
    # As if uretprobes had put their trampoline in place of return addresses.
    stack, returns = bytearray(capture.stack), {}
    for address in addresses:
        at = stack.index(struct.pack("<Q", address))
        struct.pack_into("<Q", stack, at, TRAMPOLINE)
        returns[capture.registers.stack_pointer + at] = address
    return bytes(stack), returns


def test_return_addresses_that_uretprobes_replaced_are_put_back(build):
    """On two functions of one stack; one of them is left out where the kernel did not tell."""
    with shown(build.program(THREE_DEEP + CALLER, "-O2")) as capture:
        whole = unwind(capture)
        stack, returns = replaced(capture, whole.addresses[1], whole.addresses[3])
        probed = capture._replace(find=with_trampoline(capture.find), stack=stack)
        walk = unwind(probed, returns=returns)
        untold = unwind(probed, returns=dict([*returns.items()][:1]))

    assert walk == whole
    assert untold.addresses == whole.addresses[:3]
    assert (untold.complete, untold.method) == (False, "eh_frame")


def test_a_return_address_of_the_program_stays(build):
    """
    A function that was left by longjmp leaves its entry with the kernel; its place on the stack
    is somebody else's by now.
    """
    with shown(build.program(THREE_DEEP + CALLER, "-O2")) as capture:
        whole = unwind(capture)
        _, returns = replaced(capture, whole.addresses[2])
        stale = dict.fromkeys(returns, whole.addresses[4])

        assert unwind(capture, returns=stale) == whole


@pytest.mark.parametrize("pushed", [0, 1, 2, 3])
def test_a_thread_in_the_trampoline_is_where_it_returns_to(build, pushed):
    """What uretprobes return to pushes up to three registers on its way into the kernel."""
    with shown(build.program(THREE_DEEP + CALLER, "-O2")) as capture:
        whole = unwind(capture)
        slot = whole.words[0]
        # As after the `ret` of capture().
        sp = capture.registers.stack_pointer + 8 * (slot + 1)
        inside = Registers(TRAMPOLINE + pushed, sp - 8 * pushed, capture.registers.frame_pointer)
        stack = bytes(8 * pushed) + capture.stack[8 * (slot + 1) :]
        find = with_trampoline(capture.find)
        walk = Unwinder().unwind(inside, stack, find, {sp - 8: whole.addresses[1]})

    assert walk.addresses == whole.addresses[1:]
    assert walk.complete


def test_pythons_own_stack_is_whole(here):
    """The interpreter, ctypes and libffi, from an extension down to main."""
    sorted([1], key=lambda _: here.function(1))
    capture = here.taken()

    assert_whole(unwind(capture), capture)


def test_a_function_that_sqlite_calls_is_on_one_stack_with_it(here):
    """A library of the distribution, with C code above and below it."""
    with sqlite3.connect(":memory:") as connection:
        connection.create_function("capture", 1, here.function.__call__)
        assert connection.execute("select capture(41)").fetchone() == (42,)
    connection.close()
    capture = here.taken()
    walk = unwind(capture)

    assert_whole(walk, capture)
    assert any("libsqlite3" in capture.find(address - 1).path for address in walk.addresses[1:])


def test_a_callback_of_the_c_library_into_python_is_one_stack(here):
    """qsort, libffi's closures, and the interpreter on both sides."""
    libc = ctypes.CDLL(None)
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    libc.qsort((ctypes.c_int * 2)(2, 1), 2, 4, compare(lambda *_: here.function(1)))
    capture = here.taken()

    assert_whole(unwind(capture), capture)


def test_a_python_thread_is_walked_to_its_beginning(here):
    """It has another stack, and another first function."""
    thread = threading.Thread(target=here.function, args=(1,))
    thread.start()
    thread.join()
    capture = here.taken()

    assert_whole(unwind(capture), capture)


def test_a_walk_does_not_change_with_what_was_walked_before(build, here):
    """One unwinder serves all processes, and remembers rules by file and not by address."""
    unwinder = Unwinder()
    here.function(1)
    capture = here.taken()
    expected = unwind(capture)
    for _ in range(2):
        with shown(build.program(THREE_DEEP + CALLER, "-O2")) as other:
            assert_whole(unwind(other, unwinder=unwinder), other)
        assert unwind(capture, unwinder=unwinder) == expected


def test_where_nothing_is_mapped_the_walk_is_its_beginning():
    """The address is a fact, whatever is known of it."""
    registers = Registers(0x1234, 0x7FFF_0000_0000, 0)

    walk = Unwinder().unwind(registers, bytes(64), lambda _: None, {})

    assert (walk.addresses, walk.complete, walk.method, walk.words) == (
        (0x1234,),
        False,
        "none",
        (),
    )


class Code:
    """Generated code everywhere: nothing but frame pointers."""

    def find(self, address):
        return Mapping(0, 1 << 47, 0, "", None, 0) if 0 <= address < 1 << 47 else None


BASE = 0x7FFF_0000_0000


@pytest.mark.parametrize(
    ("words", "addresses", "complete"),
    [
        pytest.param([BASE + 16, 0x20, 0, 0x30], (0x10, 0x20, 0x30), True, id="to a zero"),
        pytest.param([BASE + 16, 0x20, 0, 0], (0x10, 0x20), True, id="to no return address"),
        pytest.param([BASE, 0x20], (0x10, 0x20), False, id="to itself"),
        pytest.param([BASE + 16, 0x20, BASE, 0x30], (0x10, 0x20, 0x30), False, id="back"),
        pytest.param([BASE + 17, 0x20, 0, 0x30], (0x10, 0x20), False, id="misaligned"),
        pytest.param([BASE + 24, 0x20, 0, 0x30], (0x10, 0x20), False, id="to the end"),
        pytest.param([BASE + 16, 1 << 50, 0, 0x30], (0x10,), False, id="no code"),
    ],
)
def test_a_chain_of_frame_pointers_has_an_end(words, addresses, complete):
    """It rises, stays within the copy, and leads to code, or it ends there."""
    registers = Registers(0x10, BASE, BASE)
    stack = struct.pack(f"<{len(words)}Q", *words)

    walk = Unwinder().unwind(registers, stack, Code().find, {})

    assert (walk.addresses, walk.complete) == (addresses, complete)
    assert walk.uses_frame_pointer


@pytest.mark.parametrize("fp", [0, 1, BASE - 8, BASE + 16, (1 << 64) - 1])
def test_a_register_that_is_no_frame_pointer_is_not_followed(fp):
    """Zero may be any value of any variable, until a chain has led to it."""
    walk = Unwinder().unwind(Registers(0x10, BASE, fp), bytes(16), Code().find, {})

    assert (walk.addresses, walk.complete, walk.method) == ((0x10,), False, "none")


U64 = st.integers(0, (1 << 64) - 1)


@given(data=st.data())
def test_no_stack_harms(here, data):
    """Whatever is on the stack and in the registers: no error, no end without an end."""
    here.function(1)
    capture = here.taken()
    stack = bytearray(capture.stack[:4096])
    sp = capture.registers.stack_pointer
    near = st.integers(sp - 64, sp + 4200)
    code = st.sampled_from(capture.backtrace)
    for at in data.draw(st.lists(st.integers(0, 511), max_size=20)):
        struct.pack_into("<Q", stack, 8 * at, data.draw(U64 | near | code))
    registers = Registers(*(data.draw(U64 | near | code | st.just(r)) for r in capture.registers))
    cut = data.draw(st.integers(0, 4096))
    returns = data.draw(st.dictionaries(near | U64, U64 | code, max_size=3))

    walk = unwind(capture._replace(registers=registers), bytes(stack[:cut]), returns)

    assert 1 <= len(walk.addresses) <= 256
    assert walk.addresses[0] == registers.instruction_pointer
    assert all(0 <= word < cut // 8 for word in walk.words)
    assert all(capture.find(address - 1) for address in walk.addresses[1:])
