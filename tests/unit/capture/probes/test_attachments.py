"""What a library's probes are said to be, by programs that attach what they are told to."""

import os
import platform
import struct
import subprocess
import time
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from otel_gpu.capture.bpf.programs import (
    ACKNOWLEDGE_EVENT,
    ASK_DEVICE,
    ENTER_CALL,
    ENTER_EVENT_WAIT,
    EXIT_CALL,
    EXIT_EVENT_WAIT,
    LEARN_DEVICE,
    LIBRARY_LIST_CHANGED,
)
from otel_gpu.capture.probes import attachments as module
from otel_gpu.capture.probes import library_sites
from otel_gpu.capture.probes.attacher import ProbeLink
from otel_gpu.capture.probes.attachments import UNUSED_LIMIT_S, Attachments
from otel_gpu.capture.probes.device_queries import SEEN_FOR_S
from otel_gpu.capture.probes.elf_exports import ElfSymbols, exported_functions
from otel_gpu.capture.probes.library_sites import LibrarySites
from otel_gpu.capture.probes.missed_starts import MissedStart
from otel_gpu.capture.probes.refusals import Refusals
from otel_gpu.errors import BpfError
from otel_gpu.files.built_libraries import MARKS, NVTX, PRELOAD, built_library
from otel_gpu.procfs.mapped_files import MappedFile, mapped_files
from otel_gpu.procfs.users import user_name
from otel_gpu.stacks.read_budget import FileWork
from tests.hosts import file_at
from tests.stubs.build import odd_starts, stub_ibverbs, stub_libraries, workload_with_runtime

OWN = os.getpid()


class Bpf:
    """Attaches all or nothing, as the kernel does, and refuses some places."""

    def __init__(self, refused=()):
        self.refused = set(refused)
        self.attached = {}
        self.forgotten = 0

    def attach_uprobes(self, program, path, probes, *, on_return=False):
        if any((program, offset) in self.refused for offset, _ in probes):
            raise BpfError("invalid argument")
        if not probes:
            return []
        link = object()
        self.attached[link] = [(program, offset) for offset, _ in probes]
        return [link]

    def detach(self, links):
        for link in links:
            del self.attached[link]

    can_queue = True

    def take_answers(self):
        return False

    def places(self):
        return sorted(place for places in self.attached.values() for place in places)


class LateBpf(Bpf):
    """Places nothing before it is told to."""

    def __init__(self):
        super().__init__()
        self.late = []

    def attach_uprobes(self, program, path, probes, *, on_return=False):
        if not probes:
            return []
        link = ProbeLink(len(self.attached))
        self.attached[link] = [(program, offset) for offset, _ in probes]
        self.late.append(link)
        return [link]

    def take_answers(self):
        return bool(self.late)

    def place(self, error=None):
        for link in self.late:
            link.is_waiting, link.error = False, error
        self.late = []


class Programs:
    def __init__(self, bpf):
        self.bpf = bpf
        self.file_work = FileWork()

    def forget_known(self):
        self.bpf.forgotten += 1


@pytest.fixture(scope="module")
def library():
    return stub_libraries().runtime


@pytest.fixture(scope="module")
def offsets(library):
    return places_of(library)


def places_of(library):
    """Where the probes of a library's functions go."""
    with library.open("rb") as stream:
        symbols = ElfSymbols(stream)
        return LibrarySites(symbols, stream).choose(dict(symbols.functions))


def test_a_library_that_waits_for_its_probes_says_so_and_has_them_later(library):
    """Processes that map it meanwhile miss their start, and the record comes with the probes."""
    bpf, found = LateBpf(), []
    attachments = Attachments(Programs(bpf))
    mapped = MappedFile(OWN, file_at(library), 1, 2, str(library))
    assert list(attachments.examine(OWN, [mapped], note=found.append)) == []
    assert list(attachments.examine(1, [mapped._replace(pid=1)], note=found.append)) == []
    assert [(one.problem, one.probed_ktime_ns) for one in found] == [(MissedStart.LATE, 0)] * 2
    assert list(attachments.take_late()) == []
    assert attachments.are_late

    bpf.place()
    ((pid, said),) = attachments.take_late()
    assert (pid, said["library"], said["failed"]) == (OWN, str(library), [])
    assert not attachments.are_late
    assert attachments.cuda_users() == {OWN, 1}
    assert list(attachments.take_late()) == []
    list(attachments.examine(2, [mapped._replace(pid=2)], note=found.append))
    assert found[-1].problem is None
    assert found[-1].probed_ktime_ns > 0


def test_a_library_whose_probes_fail_late_is_taken_in_anew(library):
    """Nothing is left of the first time."""
    bpf = LateBpf()
    attachments = Attachments(Programs(bpf))
    mapped = MappedFile(OWN, file_at(library), 1, 2, str(library))
    list(attachments.examine(OWN, [mapped]))
    bpf.place(BpfError("invalid argument"))
    assert list(attachments.take_late()) == []
    assert bpf.attached == {}

    list(attachments.examine(OWN, [mapped]))
    bpf.place()
    ((_, said),) = attachments.take_late()
    assert said["failed"] == []


def test_no_library_is_taken_in_while_too_much_waits(library):
    bpf, found = LateBpf(), []
    bpf.can_queue = False
    attachments = Attachments(Programs(bpf))
    mapped = MappedFile(OWN, file_at(library), 1, 2, str(library))
    list(attachments.examine(OWN, [mapped], note=found.append))
    assert [one.problem for one in found] == [MissedStart.LATE]
    bpf.can_queue = True
    list(attachments.examine(OWN, [mapped]))
    assert bpf.attached


def attach(library, refused=()):
    """Examine a process that maps one library; what was said, and what is attached."""
    bpf = Bpf(refused)
    file = file_at(library)
    mapped = MappedFile(os.getpid(), file, 1, 2, str(library))
    attachments = Attachments(Programs(bpf))
    (said,) = attachments.examine(os.getpid(), [mapped])
    return said, bpf, attachments


def test_a_library_says_how_many_functions_it_exports_and_carry_probes(library):
    """Where nothing fails, all of them do."""
    said, bpf, attachments = attach(library)

    assert said["library"] == str(library)
    assert said["symbols"] == said["exported"] == len(bpf.places()) / 2 > 20
    assert said["failed"] == []
    assert attachments.cuda_users() == {os.getpid()}


@pytest.mark.parametrize("program", [ENTER_CALL, EXIT_CALL])
def test_a_function_that_takes_no_probe_does_not_cost_the_others(library, offsets, caplog, program):
    """It is named, and carries neither probe: an entry needs its return."""
    whole, everything, _ = attach(library)
    refused = {offsets["cudaMalloc"], offsets["cudaFree"]}

    said, bpf, attachments = attach(library, {(program, offset) for offset in refused})

    assert sorted(said["failed"]) == ["cudaFree", "cudaMalloc"]
    assert said["exported"] == whole["exported"]
    assert said["symbols"] == whole["exported"] - 2
    assert bpf.places() == [place for place in everything.places() if place[1] not in refused]
    assert attachments.cuda_users() == {os.getpid()}
    [message] = caplog.messages
    assert f"2 of {whole['exported']} functions carry no probe: invalid argument" in message


def test_a_library_without_a_single_probe_is_said_to_be_one(library, offsets):
    """None of its calls can be seen, and who maps it is no process that we can see call."""
    everything = {(ENTER_CALL, offset) for offset in offsets.values()}

    said, bpf, attachments = attach(library, everything)

    assert said["symbols"] == 0
    assert len(said["failed"]) == said["exported"] > 20
    assert bpf.places() == []
    assert attachments.cuda_users() == set()


def test_a_process_is_no_user_of_what_it_does_not_map_any_more(library):
    """Looked at again, it maps nothing: its probes go when they were unused for long enough."""
    _, bpf, attachments = attach(library)

    list(attachments.examine(os.getpid(), []))
    attachments.detach_unused(0)
    assert bpf.attached
    attachments.detach_unused(UNUSED_LIMIT_S)

    assert attachments.cuda_users() == set()
    assert not bpf.attached


def test_users_that_are_gone_are_forgotten_without_a_report(library):
    """Who is not watched ends unnoticed; all that is known is who lives."""
    _, _, attachments = attach(library)

    attachments.keep({os.getpid(), 1})
    assert attachments.cuda_users() == {os.getpid()}
    attachments.keep({1})

    assert attachments.cuda_users() == set()


def test_a_library_of_verbs_makes_nobody_a_user_of_cuda():
    """Its calls are seen in processes that are watched, and each event in a way of its own."""
    said, bpf, attachments = attach(stub_ibverbs())

    assert said["symbols"] == said["exported"] == 14
    assert attachments.cuda_users() == set()
    programs = Counter(program for program, *_ in bpf.places())
    assert programs == {
        ENTER_CALL: 12,
        EXIT_CALL: 12,
        ENTER_EVENT_WAIT: 1,
        EXIT_EVENT_WAIT: 1,
        ACKNOWLEDGE_EVENT: 1,
    }


def test_what_is_loaded_after_probes_went_is_to_be_reported_again(library):
    """Else a library that is opened again would be taken for one that carries probes."""
    _, bpf, attachments = attach(library)

    attachments.forget(os.getpid())
    attachments.detach_unused(0)
    assert bpf.forgotten == 0
    attachments.detach_unused(UNUSED_LIMIT_S)

    assert bpf.forgotten == 1


def test_an_inode_that_comes_again_is_looked_at_again(library):
    """Nothing keeps the inode of a file without probes once nobody maps it."""
    bpf = Bpf()
    attachments = Attachments(Programs(bpf))
    file = file_at(library)
    pid = os.getpid()
    exe = MappedFile(pid, file, 1, 2, os.readlink(f"/proc/{pid}/exe"))  # noqa: PTH115

    assert list(attachments.examine(pid, [exe])) == []
    attachments.forget(pid)
    (said,) = attachments.examine(pid, [MappedFile(pid, file, 1, 2, str(library))])

    assert said["symbols"] > 0


def test_files_beyond_the_share_of_their_program_cost_no_other_program_its_own(
    library, tmp_path, monkeypatch, lives
):
    """One maps more files than all can have: it has half of them, and a later one finds room."""
    monkeypatch.setattr(module, "MAX_FILES", 34)
    refusals = Refusals()
    attachments = Attachments(Programs(Bpf()), refusals=refusals)
    paths = [tmp_path / f"libcudart.so.{number}" for number in range(41)]
    for path in paths:
        path.write_bytes(b"no library")
    files = [MappedFile(OWN, file_at(path), 1, 2, str(path)) for path in paths]
    arrivals = []
    for _ in range(2):  # What is refused again is the same.
        list(attachments.examine(OWN, files, note=arrivals.append))

    other = MappedFile(lives, file_at(library), 1, 2, str(library))
    (said,) = attachments.examine(lives, [other])

    assert said["symbols"] == said["exported"]
    refused = [one for one in arrivals if one.problem is MissedStart.TOO_MANY]
    assert len({one.mapped.path for one in refused}) == 41 - 17
    refusals.describe(())
    (named,) = refusals.named
    assert named.pop("name") == Path("/proc/self/comm").read_text().rstrip("\n")
    assert named == {"bound": "files", "pid": OWN, "user": user_name(os.getuid()), "count": 24}


@pytest.fixture
def lives():
    """The pid of another process that lives."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


def test_a_library_that_could_not_be_opened_is_tried_again_with_the_next_process(library, caplog):
    """A process may end while it is looked at; that is said once, and of each process counted."""
    attachments = Attachments(Programs(Bpf()))
    good = MappedFile(os.getpid(), file_at(library), 1, 2, str(library))
    arrivals = []

    for gone in (5_000_001, 5_000_002):
        bad = good._replace(pid=gone, path="/nowhere/libcudart.so.12")
        assert list(attachments.examine(gone, [bad], note=arrivals.append)) == []
    assert [(one.probed_ktime_ns, one.problem) for one in arrivals] == [
        (0, MissedStart.UNREADABLE)
    ] * 2
    assert len(caplog.messages) == 1
    before_ktime_ns = time.monotonic_ns()
    (said,) = attachments.examine(OWN, [good], note=arrivals.append)
    list(attachments.examine(OWN, [good], note=arrivals.append))

    assert said["symbols"] > 0
    (arrival,) = arrivals[2:]
    assert before_ktime_ns < arrival.probed_ktime_ns < time.monotonic_ns()
    assert arrival.problem is None


def test_a_library_that_takes_no_probe_is_a_problem_of_each_process(library, offsets):
    everything = {(ENTER_CALL, offset) for offset in offsets.values()}
    attachments = Attachments(Programs(Bpf(everything)))
    mapped = MappedFile(OWN, file_at(library), 1, 2, str(library))
    arrivals = []

    list(attachments.examine(OWN, [mapped], note=arrivals.append))
    list(attachments.examine(OWN + 1, [mapped], note=arrivals.append))

    assert [one.problem for one in arrivals] == [MissedStart.REFUSED] * 2


def test_a_process_that_has_ended_leads_to_its_library(library, tmp_path):
    """The next process that uses it is seen from its first call on, as it is probed by then."""
    attachments = Attachments(Programs(Bpf()))
    link = tmp_path / "libcudart.so.12"
    link.symlink_to(library)
    arrivals = []

    (said,) = attachments.examine_path(5_000_001, str(link), arrivals.append)
    begun_ktime_ns = time.monotonic_ns()
    mapped = MappedFile(OWN, file_at(library), 1, 2, str(library))
    assert list(attachments.examine(OWN, [mapped], note=arrivals.append)) == []

    assert said["symbols"] > 0
    assert [one.probed_ktime_ns < begun_ktime_ns for one in arrivals] == [True, True]
    assert attachments.cuda_users() == {OWN}
    with pytest.raises(FileNotFoundError):
        list(attachments.examine_path(5_000_001, "/nowhere/libcudart.so.12", arrivals.append))


def test_what_a_program_is_told_of_its_device_is_seen_for_some_seconds(library, offsets):
    """Where it lived before it was watched. It asks too often to pay for that all the time."""
    bpf = Bpf()
    attachments = Attachments(Programs(bpf))
    mapped = MappedFile(os.getpid(), file_at(library), 1, 2, str(library))
    asked = {(ASK_DEVICE, offsets["cudaGetDevice"]), (LEARN_DEVICE, offsets["cudaGetDevice"])}

    list(attachments.examine(os.getpid(), [mapped]))
    assert not asked & set(bpf.places())
    list(attachments.examine(os.getpid(), [mapped], lived_before=True))
    assert asked <= set(bpf.places())
    attachments.let_ask()
    assert asked <= set(bpf.places())
    attachments.let_ask(time.monotonic() + SEEN_FOR_S)
    assert not asked & set(bpf.places())


HOT = {"cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaSetDevice"}
RARE = {"cudaMalloc", "cudaFree", "cudaGraphInstantiate"}


def probed(bpf, offsets, names):
    """Which of these functions carry probes."""
    found = {offset for _, offset in bpf.places()}
    return {name for name in names if offsets[name] in found}


def test_a_preloaded_process_pays_for_no_probe_at_calls_that_it_counts(library, offsets):
    """What needs the kernel side keeps its probes; what is left to the preload library is said."""
    whole, _, _ = attach(library)
    bpf = Bpf()
    mapped = MappedFile(os.getpid(), file_at(library), 1, 2, str(library))

    (said,) = Attachments(Programs(bpf)).examine(os.getpid(), [mapped], is_preloaded=True)

    assert probed(bpf, offsets, HOT | RARE) == RARE
    assert said["symbols"] + said["preload"] == said["exported"] == whole["exported"]
    assert said["preload"] >= len(HOT)
    assert whole["preload"] == 0


def test_a_file_that_others_use_too_carries_all_probes_while_they_do(library, offsets):
    """From the first one that is not preloaded until the last one was gone for a while."""
    bpf = Bpf()
    attachments = Attachments(Programs(bpf))
    mapped = MappedFile(os.getpid(), file_at(library), 1, 2, str(library))
    with subprocess.Popen(["sleep", "60"]) as other:
        list(attachments.examine(os.getpid(), [mapped], is_preloaded=True))

        (said,) = attachments.examine(other.pid, [mapped])
        assert probed(bpf, offsets, HOT | RARE) == HOT | RARE
        assert said["symbols"] == said["exported"]

        attachments.forget(other.pid)
        attachments.detach_unused(0)
        attachments.detach_unused(UNUSED_LIMIT_S - 1)
        assert probed(bpf, offsets, HOT | RARE) == HOT | RARE
        attachments.detach_unused(UNUSED_LIMIT_S)
        assert probed(bpf, offsets, HOT | RARE) == RARE

        (said,) = attachments.examine(other.pid, [mapped])
        assert probed(bpf, offsets, HOT | RARE) == HOT | RARE
        assert said["symbols"] == said["exported"]
        other.kill()


def test_a_child_is_preloaded_as_its_parent(library, offsets):
    """It does not make the probes come back."""
    bpf = Bpf()
    attachments = Attachments(Programs(bpf))
    mapped = MappedFile(os.getpid(), file_at(library), 1, 2, str(library))
    list(attachments.examine(os.getpid(), [mapped], is_preloaded=True))

    attachments.inherit(os.getpid(), 1)
    list(attachments.examine(os.getpid(), [mapped], is_preloaded=True))

    assert probed(bpf, offsets, HOT | RARE) == RARE


def test_a_program_that_has_the_runtime_in_itself_keeps_its_probes(library):
    """Its own calls do not come by the dynamic linker, and so not by the preload library."""
    bpf = Bpf()
    attachments = Attachments(Programs(bpf))
    path = workload_with_runtime("exact").resolve()
    with subprocess.Popen([path, library, str(10**15), "1"]) as program:
        mapped = MappedFile(program.pid, file_at(path), 1, 2, str(path))
        (said,) = attachments.examine(program.pid, [mapped], is_preloaded=True)
        attachments.detach_unused(0)
        attachments.detach_unused(UNUSED_LIMIT_S)
        program.kill()

    assert probed(bpf, places_of(path), HOT | RARE) == HOT | RARE
    assert said["symbols"] == said["exported"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="sites are chosen on x86-64")
def test_entry_and_return_are_probed_at_the_site_which_is_said():
    """Behind the start of functions that begin as the driver's, and where that is not wanted, there."""
    library = odd_starts()
    offset = dict(exported_functions(str(library)))["cuStreamSynchronize"]
    mapped = MappedFile(OWN, file_at(library), 1, 2, str(library))
    sites, entries = Bpf(), Bpf()

    (said,) = Attachments(Programs(sites)).examine(OWN, [mapped])
    (other,) = Attachments(Programs(entries), at_sites=False).examine(OWN, [mapped])

    pair = {ENTER_CALL, EXIT_CALL}
    assert {program for program, at in sites.places() if at == offset + 10} == pair
    assert {program for program, at in entries.places() if at == offset} == pair
    assert len(sites.places()) == len(entries.places())
    (jumps,) = (alike for alike in said["sites"] if alike["offset"] == 10)
    assert jumps == {
        "offset": 10,
        "instruction": "je",
        "class": "emulated",
        "symbols": [
            *("cuCtxSynchronize", "cuMemAlloc_v2", "cuMemsetD32_v2"),
            *("cuStreamDestroy_v2", "cuStreamSynchronize"),
        ],
    }
    assert sum(len(alike["symbols"]) for alike in said["sites"]) == said["symbols"]
    assert {(alike["offset"], alike["class"]) for alike in other["sites"]} == {(0, "unknown")}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="sites are chosen on x86-64")
@pytest.mark.parametrize(
    ("library", "prefix"),
    [(PRELOAD, "otel_gpu_preload_"), (MARKS, "otel_gpu_"), (NVTX, "otel_gpu_")],
)
def test_functions_of_our_own_begin_with_what_all_kernels_emulate(library, prefix):
    """Those that are there to be probed: of the preload library, of marks and of NVTX."""
    with built_library(library).open("rb") as stream:
        symbols = ElfSymbols(stream, (prefix.encode(),))
        sites = LibrarySites(symbols, stream)
        sites.choose(dict(symbols.functions), reads_stack=False)

    assert sites.chosen.keys() == dict(symbols.functions).keys() != set()
    assert set(sites.chosen.values()) == {(0, "nop", "emulated")}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="sites are chosen on x86-64")
def test_the_dynamic_linker_is_probed_where_its_list_can_be_found():
    """At its one instruction, or behind an endbr64: the program is told how far the list is from there."""
    bpf = Bpf()
    (linker,) = {
        mapped.file: mapped for mapped in mapped_files(OWN) if mapped.is_dynamic_linker
    }.values()
    with Path(linker.path).open("rb") as stream:
        symbols = ElfSymbols(stream)
        entry = dict(symbols.functions)["_dl_debug_state"]
        (place,) = (
            LibrarySites(symbols, stream)
            .choose({"_dl_debug_state": entry}, reads_stack=False)
            .values()
        )

    assert list(Attachments(Programs(bpf)).examine(OWN, [linker])) == []

    assert bpf.places() == [(LIBRARY_LIST_CHANGED, place)]
    assert place - entry in {0, 4}


@pytest.fixture
def arm64_library(tmp_path):
    """A library that says it is of arm64, of whose functions two begin as the driver's and NCCL's do."""
    path = tmp_path / "libcuda.so.1"
    data = bytearray(odd_starts().read_bytes())
    # e_machine of ELF.
    struct.pack_into("<H", data, 18, 183)
    offsets = dict(exported_functions(str(odd_starts())))
    for name, words in (
        ("cuStreamSynchronize", (0xB000CA82, 0x52974001, 0x52800080, 0xD65F03C0)),
        ("cuMemAlloc_v2", (0xD503245F, 0x90000103, 0x52800080, 0xD65F03C0)),
        ("cuEventRecord", (0x58000040, 0xD61F0200)),
    ):
        struct.pack_into(f"<{len(words)}I", data, offsets[name], *words)
    path.write_bytes(data)
    return path, offsets


def examine_on_arm64(monkeypatch, library, **more):
    monkeypatch.setattr(module, "LibrarySites", partial(LibrarySites, machine="aarch64"))
    bpf = Bpf()
    mapped = MappedFile(OWN, file_at(library), 1, 2, str(library))
    (said,) = Attachments(Programs(bpf), **more).examine(OWN, [mapped])
    return said, {at for _, at in bpf.places()}


def test_on_arm64_only_what_the_kernel_simulates_is_probed(monkeypatch, arm64_library, caplog):
    """All others are named, and count among what the library exports."""
    library, offsets = arm64_library

    said, places = examine_on_arm64(monkeypatch, library)

    assert places == {offsets["cuStreamSynchronize"], offsets["cuMemAlloc_v2"] + 4}
    assert said["symbols"] == 2
    assert said["exported"] == 2 + len(said["unsafe"])
    assert {"cuEventRecord", "cuStreamDestroy_v2"} <= set(said["unsafe"])
    assert said["failed"] == []
    assert f"{len(said['unsafe'])} of {said['exported']} functions carry no probe" in caplog.text


def test_on_arm64_the_operator_may_have_others_probed_too(monkeypatch, arm64_library, caplog):
    """At their entries, and never where kernels would do something else."""
    library, offsets = arm64_library

    said, places = examine_on_arm64(monkeypatch, library, at_sites=False, steps_foreign=True)

    assert {offsets["cuStreamSynchronize"], offsets["cuStreamDestroy_v2"]} <= places
    # Its first instruction is not simulated: without sites it is stepped.
    assert offsets["cuMemAlloc_v2"] in places
    # The bytes of the latter happen to be a literal load, too.
    assert said["unsafe"] == ["cuEventRecord", "cuStreamCreate"]
    assert "2 of 21 functions carry no probe" in caplog.text


@pytest.mark.skipif(platform.machine() != "x86_64", reason="sites are chosen on x86-64")
def test_only_so_much_of_a_library_is_decoded(monkeypatch):
    """A file may claim any functions: beyond the bound they are probed at their entries."""
    library = odd_starts()
    monkeypatch.setattr(library_sites, "_MAX_DECODED_BYTES", 100)

    (said,) = Attachments(Programs(Bpf())).examine(
        OWN, [MappedFile(OWN, file_at(library), 1, 2, str(library))]
    )

    kinds = Counter()
    for alike in said["sites"]:
        kinds[alike["class"]] += len(alike["symbols"])
    assert 0 < kinds["unknown"] < said["symbols"] == kinds.total()


def test_probes_of_many_files_go_some_at_a_time(library, monkeypatch):
    """The kernel waits for each: what else the agent does, its end too, does not wait for all of them."""
    _, _, attachments = attach(library)
    now_s, gone = [100.0], []

    class Asks:
        """It takes 30 ms to let go of, once."""

        def expire(self, _now_s):
            if self not in gone:
                gone.append(self)
                now_s[0] += 0.03

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    attachments._files = {number: SimpleNamespace(asks=Asks()) for number in range(11)}
    went = []
    while len(gone) < 11:
        before = len(gone)
        attachments.let_ask()
        went.append(len(gone) - before)

    assert went == [4, 4, 3]
