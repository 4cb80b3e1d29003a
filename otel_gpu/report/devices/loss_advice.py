"""
Advice on time that a device lost.

Each rule checks one reason for lost time, which must be a minimal share of the window.
"""

import re
from collections.abc import Iterator
from typing import Final

from otel_gpu.explain.traces.device_use import DeviceUse
from otel_gpu.explain.traces.idle_causes import IdleCause
from otel_gpu.explain.traces.loader_period import find_loader_period
from otel_gpu.report.devices.advice_evidence import (
    Rule,
    gap_ids,
    kernel_ids,
    knows_torch,
    longest_place,
    share_of,
)
from otel_gpu.report.devices.types import Advice
from otel_gpu.report.wording.formats import format_share, format_size
from otel_gpu.state.traces.device_steps import StepTimePart
from otel_gpu.state.traces.device_time import TO_DEVICE, WITHIN_DEVICE
from otel_gpu.state.traces.host_regions import Region
from otel_gpu.state.traces.host_time import Inside
from otel_gpu.state.traces.kernel_kinds import KernelKind
from otel_gpu.state.traces.launches import GRAPH_LAUNCH

# Minimal shares of the window.
_LOADER, _COPIES, _SYNC, _ALLOCATOR = 0.05, 0.01, 0.03, 0.03
_HOST, _COMMUNICATION, _ZERO_GRAD, _OFFLOAD = 0.15, 0.10, 0.01, 0.10
_WORKERS, _COMPILE, _MOVES, _LOADING = 0.01, 0.02, 0.10, 0.05
# Shares of kernels, of communication, and of copies in the other direction.
_MANY_SHORT, _OVERLAPS, _BACK = 0.5, 0.3, 0.1

_ONE_PROCESS = "_SingleProcessDataLoaderIter"
_ZERO = "Optimizer.zero_grad"
# A compiled region, and the count of its earlier compilations; see
# torch._dynamo.config.recompile_limit.
_ENTRY = re.compile(r"Torch-Compiled Region: \d{1,9}/(\d{1,9})")
_ENTRIES = 8


def _loader(name: str, use: DeviceUse) -> Iterator[Advice]:
    share = share_of(use, use.idle_ns.get(IdleCause.DATA_LOADER, 0))
    if share < _LOADER:
        return
    yield Advice(
        text=f"{_loader_advice(use)}. The device waited for it {format_share(share)} of the window."
        f"{longest_place(use, IdleCause.DATA_LOADER)}",
        evidence=gap_ids(name, use, IdleCause.DATA_LOADER),
        gain_at_most=share,
        check="idle time by data_loader, and the part data_loader of steps",
    )


def _loader_advice(use: DeviceUse) -> str:
    if any(_ONE_PROCESS in gap.place.name for gap in use.gaps):
        return (
            "The data loader runs in the training process (num_workers=0): give it workers, one less "
            "than there are CPUs to begin with, and persistent_workers=True"
        )
    if found_period := find_loader_period(
        [step.parts[StepTimePart.DATA_LOADER] for step in use.steps]
    ):
        return (
            f"Every {found_period.period} steps one waits for the data loader ({found_period.long} of {found_period.steps} "
            f"steps), as its workers end together if there are {found_period.period} of them: a "
            "prefetch_factor of 3 or 4 smooths that. If the waits are as long then, the workers are too "
            "slow on average, and only more of them or less work in them helps"
        )
    return (
        "The data loader's workers are too slow: give it more of them or a larger "
        "prefetch_factor, or do less in them"
    )


def _workers(name: str, use: DeviceUse) -> Iterator[Advice]:
    started = use.regions[Region.WORKERS]
    share = share_of(use, started.idle_ns)
    if started.times > 1 and share >= _WORKERS:
        yield Advice(
            text=f"The data loader starts its workers anew in each epoch, {started.times:,} times, and the "
            f"device was idle in that time, {format_share(share)} of the window: use persistent_workers=True.",
            evidence=gap_ids(name, use, *IdleCause),
            gain_at_most=share,
            check="functions _get_iterator of the data loader, and idle time",
        )


def _pageable(name: str, use: DeviceUse) -> Iterator[Advice]:
    share = share_of(use, use.phases.exposed_copy_ns)
    pageable = [one for one in use.work.copies if one.is_pageable]
    if share < _COPIES or not pageable:
        return
    bound = min(share, share_of(use, sum(one.total_ns for one in pageable)))
    if bound < _COPIES:
        return
    moved = ", ".join(f"{one.way} {format_size(one.size_bytes)}" for one in pageable)
    if not knows_torch(use):
        instead = "copy from and to pinned memory, asynchronously"
    elif all(one.way != TO_DEVICE for one in pageable):
        instead = "copy to pinned memory with non_blocking=True, and less often"
    else:
        instead = "use pin_memory=True together with .to(device, non_blocking=True)"
    yield Advice(
        text="Copies use memory that can be paged out, and the device waits for them "
        f"{format_share(bound)} of the window ({moved}): {instead}.",
        evidence=kernel_ids(name=name, use=use, kind=KernelKind.COPY, words="pageable"),
        gain_at_most=bound,
        check="exposed_copy_ns, and copies named Pinned",
    )


def _sync(name: str, use: DeviceUse) -> Iterator[Advice]:
    share = share_of(use, use.idle_ns.get(IdleCause.SYNC, 0))
    if share >= _SYNC:
        waits = ".item(), .cpu(), print and nonzero()" if knows_torch(use) else "such waits"
        yield Advice(
            text="The host waits for the device and only then goes on to launch: the device was idle so "
            f"{format_share(share)} of the window. Avoid {waits} in each "
            f"step.{longest_place(use, IdleCause.SYNC)}",
            evidence=gap_ids(name, use, IdleCause.SYNC),
            gain_at_most=share,
            check="idle time by sync",
        )


def _allocator(name: str, use: DeviceUse) -> Iterator[Advice]:
    share = share_of(use, use.idle_ns.get(IdleCause.ALLOCATOR, 0))
    if share >= _ALLOCATOR:
        settings = (
            ", do not call torch.cuda.empty_cache() in it, and try "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
            if knows_torch(use)
            else ", and keep what is allocated"
        )
        yield Advice(
            text=f"The device waited {format_share(share)} of the window while memory was allocated or "
            f"freed on it: allocate before the loop{settings}.{longest_place(use, IdleCause.ALLOCATOR)}",
            evidence=gap_ids(name, use, IdleCause.ALLOCATOR),
            gain_at_most=share,
            check="idle time by allocator",
        )


def _host(name: str, use: DeviceUse) -> Iterator[Advice]:
    causes = (IdleCause.HOST_OP, IdleCause.PYTHON, IdleCause.LAUNCH_LATENCY)
    # One call launches a whole graph: fewer launches are not possible.
    share = share_of(
        use,
        sum(
            time_ns
            for place, time_ns in use.places
            if place.cause in causes and not GRAPH_LAUNCH.fullmatch(place.name)
        ),
    )
    if share < _HOST:
        return
    work = use.work
    is_short = bool(work.kernel_count) and work.short > _MANY_SHORT * work.kernel_count
    short = (
        f" {format_share(work.short / work.kernel_count)} of the kernels take less than 10 µs."
        if is_short
        else ""
    )
    doing = "operators and Python ran" if knows_torch(use) else "calls were made that launch work"
    yield Advice(
        text=f"The host is too slow to keep the device busy: it was idle {format_share(share)} of the window "
        f"while {doing}.{short} Launch less: {_fewer_launches(use)}.{longest_place(use, *causes)}",
        evidence=gap_ids(name, use, *causes),
        gain_at_most=share,
        check="idle time by host_op, python and launch_latency",
    )


def _fewer_launches(use: DeviceUse) -> str:
    # A program that already launches graphs gets no advice to use them.
    if knows_torch(use):
        graphs = "" if use.launches.graphs else 'CUDA graphs (mode="reduce-overhead"), '
        return f"torch.compile, {graphs}fused or foreach variants, or a larger batch"
    graphs = "" if use.launches.graphs else "graphs of launches, "
    return f"{graphs}kernels that do what several do, or more work for each"


def _loading(name: str, use: DeviceUse) -> Iterator[Advice]:
    share = share_of(use, use.idle_ns.get(IdleCause.MODULE_LOADING, 0))
    if share < _LOADING:
        return
    early = (
        "run each kernel once before"
        if use.model.name.startswith("AMD")
        else "run each kernel once before, or set CUDA_MODULE_LOADING=EAGER"
    )
    yield Advice(
        text=f"The device was idle {format_share(share)} of the window while code was loaded, as happens at the "
        f"first launch of a kernel: {early}, and leave it out of what is measured."
        f"{longest_place(use, IdleCause.MODULE_LOADING)}",
        evidence=gap_ids(name, use, IdleCause.MODULE_LOADING),
        gain_at_most=share,
        check="idle time by module_loading",
    )


def _zero_grad(name: str, use: DeviceUse) -> Iterator[Advice]:
    waited_ns = sum(time_ns for place, time_ns in use.places if _ZERO in place.name)
    filled_ns = use.work.inside_ns.get(Inside.ZERO_GRAD, 0)
    share = share_of(use, waited_ns + filled_ns)
    if filled_ns and share >= _ZERO_GRAD:
        yield Advice(
            text=f"Gradients are set to zero one by one, which takes {format_share(share)} of the window: "
            "use optimizer.zero_grad(set_to_none=True).",
            evidence=gap_ids(name, use, *IdleCause, named=_ZERO),
            gain_at_most=share,
            check="activities inside Optimizer.zero_grad",
        )


def _communication(name: str, use: DeviceUse) -> Iterator[Advice]:
    phases = use.phases
    share, overlap = share_of(use, phases.exposed_communication_ns), phases.overlap
    if share < _COMMUNICATION or overlap is None:
        return
    earlier = (
        "gradient_as_bucket_view=True and a fitting bucket_cap_mb, no find_unused_parameters; with FSDP "
        "backward_prefetch and forward_prefetch; and nothing in a step that waits for the device"
        if knows_torch(use)
        else "on a stream of its own, in several parts; and nothing in a step that waits for the device"
    )
    little = f"only {format_share(overlap)}" if overlap < _OVERLAPS else format_share(overlap)
    yield Advice(
        text=f"Communication keeps the device from computing {format_share(share)} of the window; {little} of "
        f"it is overlapped. Let it begin earlier: {earlier}.",
        evidence=kernel_ids(name, use, KernelKind.COMMUNICATION),
        gain_at_most=share,
        check="exposed_communication_ns and overlap",
    )


def _offload(name: str, use: DeviceUse) -> Iterator[Advice]:
    moved = {way: [one for one in use.work.copies if one.way == way] for way in ("HtoD", "DtoH")}
    sizes = {way: sum(one.size_bytes for one in found) for way, found in moved.items()}
    # Offloaded data moves in both directions in similar amounts.
    if min(sizes.values()) < _BACK * max(sizes.values()) or not all(sizes.values()):
        return
    taken_ns = sum(one.total_ns for found in moved.values() for one in found)
    share = share_of(use, min(taken_ns, use.phases.exposed_copy_ns))
    if share >= _OFFLOAD:
        text = ", ".join(f"{way} {format_size(size)}" for way, size in sizes.items())
        yield Advice(
            text=f"Data goes to the host and back ({text}), which is exposed {format_share(share)} of the window: "
            "offload less, or prefetch it on a stream of its own.",
            evidence=kernel_ids(name=name, use=use, kind=KernelKind.COPY, words="HtoD|DtoH"),
            gain_at_most=share,
            check="exposed_copy_ns and copies",
        )


def _moves(name: str, use: DeviceUse) -> Iterator[Advice]:
    moved = [one for one in use.work.copies if one.way == WITHIN_DEVICE]
    share = share_of(use, sum(one.total_ns for one in moved))
    if share >= _MOVES:
        size = format_size(sum(one.size_bytes for one in moved))
        calls = (
            ", and avoid clone(), contiguous() and cat() in each step" if knows_torch(use) else ""
        )
        yield Advice(
            text=f"Data is copied within the device ({size}), {format_share(share)} of the window: write to where it is "
            f"needed{calls}.",
            evidence=kernel_ids(name=name, use=use, kind=KernelKind.COPY, words=WITHIN_DEVICE),
            gain_at_most=share,
            check="copies of the way DtoD",
        )


def _compile(name: str, use: DeviceUse) -> Iterator[Advice]:
    compiled = use.regions[Region.COMPILE]
    share = share_of(use, compiled.idle_ns)
    found = map(_ENTRY.fullmatch, use.trace.names)
    entries = max((int(match[1]) for match in found if match), default=0)
    is_full = entries >= _ENTRIES - 1
    if share < _COMPILE and not is_full:
        return
    steps = f", in {compiled.steps:,} of {len(use.steps):,} steps" if use.steps else ""
    when = f"torch.compile compiled {compiled.times:,} times while it was recorded{steps}, and "
    idle = f"the device was idle in that time, {format_share(share)} of the window. "
    full = (
        f"A region was compiled {entries + 1:,} times: from {_ENTRIES} on it is run without being compiled. "
        if is_full
        else ""
    )
    yield Advice(
        text=f"{when + idle if compiled.times else ''}{full}If these are no first steps, inputs that change make "
        "it compile again: TORCH_LOGS=recompiles says which, and torch.compile(dynamic=True), "
        "torch._dynamo.mark_dynamic or padding to few shapes avoids it.",
        evidence=gap_ids(name, use, *IdleCause) if share else (name,),
        gain_at_most=share or None,
        check="regions of torch.compile: how often it compiles after the first steps",
    )


RULES_OF_LOSS: Final[tuple[Rule, ...]] = (
    _loader, _workers, _pageable, _sync, _allocator, _host, _loading, _compile, _zero_grad, _communication,
    _offload, _moves,
)  # fmt: skip
