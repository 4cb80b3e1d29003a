"""What to do about requests for memory that failed, each with the number that says so."""

from collections.abc import Iterator

from otel_gpu.enrich.stack_text import describe_place
from otel_gpu.explain.chains import CauseKind, Failure
from otel_gpu.units import count_of, format_size


def advise(failure: Failure) -> Iterator[str]:
    """Yield what can be done."""
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


def grow(size_bytes: int) -> str:
    """Return the advice to let segments grow, as so much is free in holes."""
    return (
        "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which is off: "
        f"{format_size(size_bytes)} is free in holes that are too small."
    )


def keep_cache(segments: int, where: str) -> str:
    """Return the advice not to empty the cache there, as so many segments came back."""
    return (
        f"Do not call torch.cuda.empty_cache() in {where}: {segments:,} segments that it gave back "
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
    """Return the share of the device that others leave; empty where that is not known."""
    capacity, outside = failure.capacity_bytes, failure.outside_bytes
    if not capacity or outside is None:
        return ""
    left = max(0, capacity - outside)
    return f"{left / capacity:.2f}"
