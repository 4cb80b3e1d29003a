"""Threads that make steps, call by call, with what they would say of their steps themselves."""

from collections.abc import Sequence
from typing import NamedTuple

from otel_gpu.capture.steps.period import CallRole, CallSequence

US = 1_000
WAIT, TO_DEVICE, TO_HOST, OTHER = 1, 2, 3, 4
KERNEL = 100
ROLES = {
    WAIT: CallRole.WAIT,
    TO_DEVICE: CallRole.TO_DEVICE,
    TO_HOST: CallRole.TO_HOST,
    OTHER: CallRole.OTHER,
}


class Log(NamedTuple):
    """What a program says of its steps: indices of their first and last calls, and the kind."""

    calls: CallSequence
    steps: list[tuple[int, int, str]]


def thread(parts: Sequence[tuple[str, Sequence[int]]], *, host_us: int = 300) -> Log:
    """
    Return a thread that makes calls part by part.

    Parts with a name are steps. Between two parts the host takes ``host_us``, between calls 5 µs,
    and each call takes 10 µs.
    """
    symbols, starts_ns, gaps_ns, steps = [], [], [], []
    now_ns = 1_000_000
    for name, calls in parts:
        if name:
            steps.append((len(symbols), len(symbols) + len(calls) - 1, name))
        for at, symbol in enumerate(calls):
            gap_ns = 5 * US if at else host_us * US
            now_ns += gap_ns
            symbols.append(symbol)
            starts_ns.append(now_ns)
            gaps_ns.append(gap_ns)
            now_ns += 10 * US
    roles = {symbol: ROLES.get(symbol, CallRole.LAUNCH) for symbol in symbols}
    return Log(CallSequence(symbols, starts_ns, gaps_ns, roles), steps)
