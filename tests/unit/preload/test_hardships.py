"""What programs do to their threads, stacks and libraries does not lose or add a call."""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from otel_gpu import wire
from tests.preloaded import LIBRARY, calls_of, is_preloaded, reading_of, running, series_of
from tests.stubs.build import linked_workload, stub_libraries

NOBODY = 65534
MANY = int(os.environ.get("OTEL_GPU_TEST_PROCESSES", "300"))


def launches(reading):
    calls = calls_of(reading)
    return calls.get("cudaLaunchKernel", 0) + calls.get("cuLaunchKernel", 0)


def counted(kind, number=1, **environment):
    """Return what the preload library has counted, and how many launches the program says it made."""
    with running([linked_workload("hardships"), kind, str(number)], **environment) as program:
        made = int(program.stdout.readline())
        reading = reading_of(program.pid)
    assert program.returncode == 0
    return reading, made


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        *(("threads", MANY), ("forks", MANY), ("clones", 11), ("fork-inside", 1)),
        *(("vforks", 11), ("signals", 1009), ("timers", 211), ("destructors", 53)),
        *(("reopens", 7), ("launches", 1)),
    ],
)
def test_calls_are_exact(kind, number):
    """Those of children are their own: they begin with nothing."""
    reading, made = counted(kind, number)

    assert launches(reading) == made
    assert sum(reading.lost) == 0
    # No thread but the main one is there any more, and no call is open.
    assert [thread.depth for thread in reading.threads] in ([0], [])


@pytest.mark.parametrize("kind", ["signals", "timers"])
def test_calls_are_exact_where_the_kernel_does_not_say_who_was_interrupted(kind):
    """As with a glibc before 2.35."""
    reading, made = counted(kind, 211, GLIBC_TUNABLES="glibc.pthread.rseq=0")

    assert launches(reading) == made
    assert sum(reading.lost) == 0


NAMED = """
#include <sys/rseq.h>
unsigned long named(void)
{
	return *(unsigned long *)((char *)__builtin_thread_pointer() + __rseq_offset + 8);
}
"""
ASKING = """
import ctypes, sys, threading
named, runtime = ctypes.CDLL(sys.argv[1]).named, ctypes.CDLL(sys.argv[2])
named.restype = ctypes.c_ulong
found = []
def ask():
    # Whoever is interrupted in between has no name any more.
    found.append(any(runtime.cudaDeviceSynchronize() == 0 and named() for _ in range(100)))
ask()
thread = threading.Thread(target=ask)
thread.start()
thread.join()
print(found, flush=True)
"""


def test_the_kernel_is_asked_whether_a_thread_was_interrupted(tmp_path):
    """The first thread as well as the next one."""
    (tmp_path / "a.c").write_text(NAMED)
    tool = tmp_path / "libnamed.so"
    subprocess.run(["gcc", "-shared", "-fPIC", tmp_path / "a.c", "-o", tool], check=True)
    command = [sys.executable, "-c", ASKING, tool, stub_libraries().runtime]
    with running(command) as program:
        assert program.stdout.readline() == "[True, True]\n"


def test_slots_of_threads_that_have_ended_are_used_again():
    """However many there have been."""
    reading, _ = counted("threads", 300)

    assert reading.slots_begun == 1


def test_more_threads_at_once_than_slots_are_counted_all_the_same():
    """In what all threads share; their open calls are not published."""
    reading, made = counted("threads-at-once", 101)

    assert launches(reading) == made
    lost = list(reading.lost)
    assert lost.pop(wire.PRELOAD_LOST_SLOTS_FULL) == 1103 - wire.PRELOAD_SLOTS
    assert sum(lost) == 0


def test_calls_that_never_return_are_said_to_be_lost():
    """And nobody takes them for open."""
    reading, made = counted("jumps", 101)

    assert calls_of(reading) == {"cudaLaunchKernel": made}
    assert reading.lost[wire.PRELOAD_LOST_NO_RETURN] == 101
    assert [thread.depth for thread in reading.threads] == [0]


def test_a_call_in_which_the_program_forks_is_the_parents(tmp_path):
    """It returns twice, and began once."""
    reading, _ = counted("fork-inside")

    assert calls_of(reading)["cudaStreamSynchronize"] == 1


def test_calls_inside_others_are_said_to_be(tmp_path):
    """A runtime call makes a driver call."""
    environment = {"CUDA_STUB": "cudaLaunchKernel:nest=1"}
    with running([linked_workload("hardships"), "launches", "17"], **environment) as program:
        program.stdout.readline()
        reading = reading_of(program.pid)

    nested = {key["api"]: (key["nested"], total["count"]) for key, total in series_of(reading)}
    assert nested == {1: (0, 17), 100: (1, 17)}


def test_failed_calls_are_series_of_their_own():
    """With what they returned."""
    environment = {"CUDA_STUB": "cudaStreamSynchronize:fail=700,fail_every=3"}
    with running([linked_workload("hardships"), "signals", "30"], **environment) as program:
        program.stdout.readline()
        reading = reading_of(program.pid)

    waits = {key["status"]: a["count"] for key, a in series_of(reading) if key["api"] == 5}
    assert waits == {0: 20, 700: 10}


@pytest.mark.parametrize(
    ("limit", "size"), [(resource.RLIMIT_FSIZE, 1 << 20), (resource.RLIMIT_AS, 24 << 20)]
)
def test_a_program_that_may_not_have_the_memory_runs_as_without(limit, size):
    """A file above the limit would be its end."""
    command = [str(linked_workload("hardships")), "launches", "7"]
    result = subprocess.run(
        command,
        env={**os.environ, "LD_PRELOAD": str(LIBRARY)},
        preexec_fn=lambda: resource.setrlimit(limit, (size, size)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (result.returncode, result.stdout) == (0, "7\n"), result.stderr


TAKER = """
#include <pthread.h>
__attribute__((constructor)) static void take(void)
{
    pthread_key_t key;
    while (!pthread_key_create(&key, 0)) {}
}
"""


@pytest.mark.parametrize("is_first", [False, True], ids=["library first", "keys first"])
def test_a_program_that_takes_all_keys_runs_as_without(tmp_path, is_first):
    """Without a key the library could not notice the end of a thread: nothing is counted."""
    taker = tmp_path / "libtaker.so"
    (tmp_path / "a.c").write_text(TAKER)
    subprocess.run(["gcc", "-shared", "-fPIC", tmp_path / "a.c", "-o", taker], check=True)
    # What comes later is initialised first.
    preload = (LIBRARY, taker) if is_first else (LIBRARY,)
    with running([linked_workload("hardships"), "keys", "7"], preload=preload) as program:
        assert program.stdout.readline() == "7\n"

        assert is_preloaded(program.pid) == (not is_first)
    assert program.returncode == 0


def test_calls_before_and_after_main_are_counted():
    """Static initialisers run before the preload library is initialised."""
    environment = {"LAUNCH_BEFORE_MAIN": "1"}
    with running([linked_workload("hardships"), "constructors"], **environment) as program:
        assert program.stdout.readline() == "1\n"
        reading = reading_of(program.pid)

    assert calls_of(reading) == {"cudaLaunchKernel": 1}
    assert program.returncode == 0


FOREIGN = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
static unsigned long calls;
typedef struct { unsigned x, y, z; } dim3;
typedef int (*launch)(const void *, dim3, dim3, void **, unsigned long, void *);
int cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **p, unsigned long n, void *s)
{
    static launch next;
    if (!next) next = (launch)dlsym(RTLD_NEXT, "cudaLaunchKernel");
    calls++;
    return next(f, g, b, p, n, s);
}
__attribute__((destructor)) static void say(void) { fprintf(stderr, "%lu\\n", calls); }
"""


def compiled(folder: Path, name: str, source: str, *flags: str) -> Path:
    path, output = folder / f"{name}.c", folder / name
    path.write_text(source)
    subprocess.run(["gcc", *flags, path, "-o", output, "-ldl"], check=True)
    return output


@pytest.mark.parametrize("is_first", [True, False])
def test_another_tool_that_wraps_the_same_sees_each_call_too(tmp_path, is_first):
    """Whether it comes before the preload library or after it."""
    other = compiled(tmp_path, "libother.so", FOREIGN, "-shared", "-fPIC")
    preload = (other, LIBRARY) if is_first else (LIBRARY, other)
    with running([linked_workload("hardships"), "launches", "23"], preload=preload) as program:
        program.stdout.readline()
        reading = reading_of(program.pid)

    assert calls_of(reading) == {"cudaLaunchKernel": 23}


def test_what_is_not_there_is_not_found(tmp_path):
    """Programs test for CUDA in this way: the preload library's own names are no answer."""
    source = """
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <stdio.h>
    int main(void)
    {
        void *found = dlsym(RTLD_DEFAULT, "cudaMalloc");
        const char *error = dlerror();
        printf("%d %s\\n", !!found, error ? "error" : "none");
        printf("%d\\n", !!dlsym(RTLD_DEFAULT, "printf"));
        return 0;
    }
    """
    program = compiled(tmp_path, "asks", source)
    result = subprocess.run(
        [program],
        env={**os.environ, "LD_PRELOAD": str(LIBRARY)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert result.stdout == "0 error\n1\n"


SET_UID = r"""
#include <stdio.h>
int cudaDeviceSynchronize(void);
int main(void)
{
    printf("%d\n", cudaDeviceSynchronize());
    fflush(stdout);
    return getchar() != EOF;
}
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes programs set-uid")
def test_a_set_uid_program_is_not_preloaded():
    """However the library came in: of what is preloaded, the dynamic linker itself takes nothing."""
    # The folders of tests are for who runs them alone.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        library, runtime = (Path(folder) / one.name for one in (LIBRARY, stub_libraries().runtime))
        shutil.copy(LIBRARY, library)
        shutil.copy(stub_libraries().runtime, runtime)
        program, source = Path(folder) / "program", Path(folder) / "program.c"
        source.write_text(SET_UID)
        linked = ["-Wl,--no-as-needed", library, runtime, f"-Wl,-rpath,{folder}"]
        subprocess.run(["gcc", source, "-o", program, *linked], check=True)
        found = []
        for mode in (0o755, 0o4755):
            program.chmod(mode)
            with running([program], preload=(), user=NOBODY) as process:
                answer = process.stdout.readline()
                maps = Path(f"/proc/{process.pid}/maps").read_text()
                found.append((answer, str(library) in maps, is_preloaded(process.pid)))

    assert found == [("0\n", True, True), ("0\n", True, False)]


def test_a_program_under_the_address_sanitizer_is_counted(tmp_path):
    """Which wants to be the first library; nothing is reported of the preload library, nor leaked."""
    sanitizer = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(sanitizer).is_absolute():
        pytest.skip("gcc's address sanitizer is not installed")
    for kind, number in (("threads", 20), ("forks", 5), ("signals", 20), ("destructors", 5)):
        with running(
            [linked_workload("hardships", "-fsanitize=address"), kind, str(number)],
            preload=(Path(sanitizer), LIBRARY),
            ASAN_OPTIONS="detect_leaks=1:abort_on_error=0",
        ) as program:
            made = int(program.stdout.readline())
            reading = reading_of(program.pid)
        assert (launches(reading), program.returncode) == (made, 0)


def test_programs_without_cuda_work_as_before(tmp_path):
    """A shell with pipes and children."""
    result = subprocess.run(
        ["sh", "-c", "seq 100 | sort -n | tail -1"],
        env={**os.environ, "LD_PRELOAD": str(LIBRARY)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert (result.stdout, result.stderr) == ("100\n", "")
    assert not is_preloaded(os.getpid())
