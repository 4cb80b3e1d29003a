"""Advice for failed requests for memory, each with the number behind it."""

from collections.abc import Iterator

from otel_gpu.enrich.stack_text import describe_place
from otel_gpu.explain.chains import Failure
from otel_gpu.explain.kinds import CauseKind
from otel_gpu.formatting.units import count_of, format_size
from otel_gpu.state.memory.snapshot import Kept
from otel_gpu.wire.memory_snapshot import SHARED

_MOST_POOLS = 3


def advise(failure: Failure) -> Iterator[str]:
    """Yield what to do, the most useful first."""
    match failure.cause:
        case CauseKind.FRAGMENTATION:
            yield from _against_holes(failure)
        case CauseKind.LEAK:
            kept = failure.leaks[0]
            yield (
                f"Let go of what {describe_place(kept.place)} allocates: {format_size(kept.size_bytes)} "
                f"in {count_of(kept.blocks, 'block')}, some from every phase, was never freed."
            )
        case CauseKind.OTHER_PROCESS:
            yield (
                f"At least {format_size(failure.outside_bytes or 0)} of the device is held outside of "
                "this allocator: look who else uses it, and give each its share with "
                f"torch.cuda.set_per_process_memory_fraction({_fraction(failure)})."
            )
        case CauseKind.FITTING_HOLE:
            yield _ask_again(failure)
        case CauseKind.PRIVATE_POOL:
            yield _let_go_of_pools(failure)
        case CauseKind.OTHER_STREAM:
            yield _use_one_stream(failure)
        case CauseKind.KEPT_CACHE:
            pools = (
                "" if failure.kept else ", and keeps what is free in private pools that are in use"
            )
            yield (
                f"{format_size(_kept_bytes(failure))} is free and was not released: PyTorch releases nothing "
                f"while a CUDA graph is captured{pools}. Call torch.cuda.empty_cache() before the capture, and "
                "warm up with the largest input."
            )
        case _:
            most = failure.holders[0] if failure.holders else None
            held = (
                f": {describe_place(most.place)} holds {format_size(most.size_bytes)}"
                if most
                else ""
            )
            yield (
                f"{format_size(failure.lacking_bytes)} more is needed than there is. Use less where "
                f"most is held{held}; a smaller batch or activation checkpointing needs less."
            )


def pool_name(pool: tuple[int, int]) -> str:
    """Return the name of a pool, by PyTorch's numbers."""
    return f"private pool {pool[0]}.{pool[1]}"


def kept_text(kept: Kept) -> str:
    """Return what free memory is kept for, the line that allocated there, and its size."""
    what = (
        pool_name(kept.pool)
        if kept.pool != SHARED
        else f"stream {kept.stream}{', for small requests' if kept.is_small else ''}"
    )
    who = f", in which {describe_place(kept.holders[0].place)} allocated," if kept.holders else ""
    return f"{what}{who} keeps {format_size(kept.free_bytes)}"


def _ask_again(failure: Failure) -> str:
    size = format_size(failure.largest_hole_bytes or 0)
    if failure.was_freed_late:
        return (
            f"A hole of {size} fits. It became free only while the request was tried: it was still in use on "
            "another stream (record_stream). PyTorch waits for that and does not look at its own memory again "
            "(pytorch#189504). Catch torch.OutOfMemoryError and ask once more, or call "
            "torch.cuda.synchronize() before what is large."
        )
    return (
        f"A hole of {size} fits and was not used. Ask once more; where max_split_size_mb is set, blocks that are "
        "larger are not divided."
    )


def _let_go_of_pools(failure: Failure) -> str:
    pools = [one for one in failure.kept if one.pool != SHARED]
    kept_names = "; ".join(map(kept_text, pools[:_MOST_POOLS]))
    more = f"; {len(pools) - _MOST_POOLS:,} more pools" if len(pools) > _MOST_POOLS else ""
    is_own = any(one.pool == failure.pool for one in pools)
    grown = "Allocate what is largest in it first. " if is_own else ""
    return (
        f"{kept_names[:1].upper()}{kept_names[1:]}{more}. It cannot be released while the CUDA graph or the torch.cuda.MemPool "
        f"that it belongs to is there, nor used by others. {grown}Delete graphs that are not replayed any more, "
        "let graphs share one pool, or delete the MemPool once it is empty."
    )


def _use_one_stream(failure: Failure) -> str:
    kept = next(one for one in failure.kept if one.largest_hole_bytes >= failure.asked_bytes)
    kept_names = kept_text(kept)
    return (
        f"{kept_names[:1].upper()}{kept_names[1:]}, the largest hole has {format_size(kept.largest_hole_bytes)}: it serves that "
        "stream only. Allocate on one stream what is to use the same memory."
    )


def _kept_bytes(failure: Failure) -> int:
    cached = [one.whole_bytes for one in failure.kept if one.pool == SHARED]
    return sum(cached) if failure.kept else failure.whole_bytes


def grow(size_bytes: int) -> str:
    """Return the advice to let segments grow, with the size of the holes."""
    return (
        "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which is off: "
        f"{format_size(size_bytes)} is free in holes that are too small."
    )


def keep_cache(segments: int, where: str) -> str:
    """Return the advice not to empty the cache in a line, with how many segments came back."""
    return (
        f"Do not call torch.cuda.empty_cache() in {where}: {segments:,} segments that it released "
        "were soon needed again."
    )


def _against_holes(failure: Failure) -> Iterator[str]:
    if failure.is_expandable is False:
        yield grow(failure.hole_bytes)
    largest = failure.largest_hole_bytes
    known = f": the largest hole has {format_size(largest)}" if largest is not None else ""
    yield (
        f"Allocate the {format_size(failure.asked_bytes)} of {describe_place(failure.place)} once, "
        f"before what is small{known}."
    )


def _fraction(failure: Failure) -> str:
    # The share of the device that others leave; empty if not known.
    capacity, outside = failure.capacity_bytes, failure.outside_bytes
    if not capacity or outside is None:
        return ""
    left = max(0, capacity - outside)
    return f"{left / capacity:.2f}"
