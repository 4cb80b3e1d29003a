"""Device memory and copies."""

from tools.grafana.fleet import CALLS
from tools.grafana.model import Dashboard, Panel, Query, Row
from tools.grafana.process import CHOSEN
from tools.grafana.promql import (
    counted,
    increase,
    of,
    or_zero,
    quantile,
    rate,
    share,
    summed,
    total,
)
from tools.grafana.variables import INSTANCE, PLACE, SERVICE

COPIES = "gpu_cuda_memory_copies_bytes"
KIND = "cuda_memcpy_kind"
IN_USE = "gpu_cuda_memory_in_use_bytes"
ALLOCATED = "gpu_cuda_memory_allocations_bytes_total"
FREED = "gpu_cuda_memory_free_bytes_total"
ALLOCATE = 'gpu_cuda_api=~"cu(da)?(Mem)?(Malloc|Alloc|Create).*"'
FREE = 'gpu_cuda_api=~"cu(da)?(Mem)?(Free|Release).*"'


def dashboard() -> Dashboard:
    """Return the dashboard."""
    return Dashboard(
        "otel-gpu-memory",
        "GPU programs: memory",
        "Device memory that programs hold, how often they ask for it, and what they copy.",
        (*PLACE, SERVICE, INSTANCE),
        (
            Row("Device memory", _held()),
            Row("Allocators of frameworks", _framework()),
            Row("Allocating calls", _allocator()),
            Row("Copies", _copies()),
        ),
    )


def _held() -> tuple[Panel, ...]:
    both = ["job", "instance"]
    held = total(of(f"{IN_USE}{{{CHOSEN}}}"), both)
    churn = share(total(of(rate(ALLOCATED, CHOSEN)), both), held)
    return (
        Panel(
            "In use",
            "Allocated and not given back since the agent began to watch. What a program's own "
            "allocator (PyTorch's, say) keeps for itself is in use here.",
            "bytes",
            [Query(held, "{{job}} {{instance}}")],
            stacked="normal",
        ),
        Panel(
            "Churn",
            "How many times a second all that a process holds is allocated anew. Above 1, caching "
            "allocations is worth a try.",
            "short",
            [Query(churn, "{{job}} {{instance}}")],
        ),
        Panel(
            "Allocated",
            "Bytes each second.",
            "Bps",
            [Query(total(of(rate(ALLOCATED, CHOSEN)), ["job"]), "{{job}}")],
        ),
        Panel(
            "Given back",
            "Bytes each second, of memory whose allocation was seen.",
            "Bps",
            [Query(total(of(rate(FREED, CHOSEN)), ["job"]), "{{job}}")],
        ),
    )


def _framework() -> tuple[Panel, ...]:
    both = ["job", "instance", "cuda_device_index"]
    legend = "{{job}} {{instance}}, device {{cuda_device_index}}"
    selected = {
        name: f"gpu_memory_{name}{{{CHOSEN}}}"
        for name in ("allocated_bytes", "reserved_bytes", "peak_bytes")
    }
    free = f"{of(selected['reserved_bytes'])} - {selected['allocated_bytes']}"
    return (
        Panel(
            "Blocks in use",
            "What PyTorch's allocator has handed out: the same memory as in use above, one layer "
            "higher. The peak is the most that it has had so far.",
            "bytes",
            [
                Query(total(of(selected["allocated_bytes"]), both), legend),
                Query(
                    f"max by ({', '.join(both)}) ({of(selected['peak_bytes'])})", f"{legend}: peak"
                ),
            ],
        ),
        Panel(
            "Reserved, and not in use",
            "Free for the program itself and for nobody else. Much of it in small holes is usual, and "
            "no fault as long as no request fails.",
            "bytes",
            [Query(total(free, both), legend)],
        ),
        Panel(
            "Requests that failed",
            "Out of memory, in the time that is shown. Spans named gpu.memory.oom have the line, and the "
            "report why it was: fragmentation, a leak, another process, or simply too much.",
            "short",
            [
                Query(
                    or_zero(total(of(increase("gpu_memory_failures_total", CHOSEN)), ["job"])),
                    "{{job}}",
                )
            ],
        ),
        Panel(
            "Known",
            "Share of the allocator's reports whose total was what had been seen. Below 1, memory was "
            "handed out unseen, and who holds it is not all of the truth.",
            "percentunit",
            [
                Query(
                    f"min by ({', '.join(both)}) ({of(f'otel_gpu_memory_coverage_ratio{{{CHOSEN}}}')})",
                    legend,
                )
            ],
        ),
    )


def _allocator() -> tuple[Panel, ...]:
    by = ["gpu_cuda_api"]
    legend = "{{gpu_cuda_api}}"
    match = f"{CHOSEN}, {ALLOCATE}"
    return (
        Panel(
            "Allocations",
            "Calls each second.",
            "ops",
            [Query(counted(CALLS, by, match), legend)],
        ),
        Panel(
            "Allocations: 99th percentile",
            "cudaMalloc and cudaFree wait for the device; a slow one stops the program.",
            "s",
            [Query(quantile(0.99, CALLS, by, match), legend, exemplars=True)],
        ),
        Panel(
            "Frees: 99th percentile",
            "As above.",
            "s",
            [Query(quantile(0.99, CALLS, by, f"{CHOSEN}, {FREE}"), legend, exemplars=True)],
        ),
        Panel(
            "Failed allocations",
            "Out of memory, above all.",
            "ops",
            [
                Query(
                    or_zero(counted(CALLS, [*by, "error_type"], f'{match}, error_type!=""')),
                    "{{gpu_cuda_api}} {{error_type}}",
                )
            ],
        ),
    )


def _copies() -> tuple[Panel, ...]:
    kind = f"{{{{{KIND}}}}}"
    return (
        Panel(
            "Copied",
            "Bytes each second that were asked for, by direction.",
            "Bps",
            [Query(summed(COPIES, [KIND], CHOSEN), kind)],
            stacked="normal",
        ),
        Panel(
            "Copies",
            "Calls each second, by direction. Many small ones cost more than one large one.",
            "ops",
            [Query(counted(COPIES, [KIND], CHOSEN), kind)],
        ),
        Panel(
            "Size of copies: median",
            "By direction.",
            "bytes",
            [Query(quantile(0.5, COPIES, [KIND], CHOSEN), kind)],
        ),
        Panel(
            "Set, and host memory registered",
            "Bytes each second.",
            "Bps",
            [
                Query(total(of(rate("gpu_cuda_memset_bytes_total", CHOSEN))), "set"),
                Query(total(of(rate("gpu_cuda_host_register_bytes_total", CHOSEN))), "registered"),
            ],
        ),
    )
