"""The injected causes that a scenario prints, which an explanation has to find."""

import json
from typing import Any, NamedTuple


class InjectedPlace(NamedTuple):
    """The lines in which the culprit worked, both ends included."""

    function: str
    file: str
    first_line: int
    last_line: int


class InjectedCause(NamedTuple):
    """
    One cause; ``pid`` and ``tid`` are of the culprit, 0 where there is none.

    ``resource`` is the file or address that was waited for; empty: none. ``place`` is where the
    culprit worked; None: it did not, or all over the place.
    """

    kind: str
    time_ns: int
    pid: int
    tid: int
    via: "InjectedCause | None"
    resource: str = ""
    place: InjectedPlace | None = None


class InjectedEffect(NamedTuple):
    """One slow call or gap, on the kernel's monotonic clock, with its causes by size."""

    kind: str
    api: str
    start_ktime_ns: int
    end_ktime_ns: int
    causes: tuple[InjectedCause, ...]

    @property
    def duration_ns(self) -> int:
        """How long it took."""
        return self.end_ktime_ns - self.start_ktime_ns


class InjectedFailure(NamedTuple):
    """A request for memory that failed: why, who asked, and whose blocks are to blame."""

    cause: str
    failed_ktime_ns: int
    asked: InjectedPlace
    held: InjectedPlace


class Truth(NamedTuple):
    """
    A scenario's own account of one thread; ``ktime_ns`` and ``unix_ns`` are the same moment.

    ``losses`` are sums over all steps, of what each step loses time to. ``lines`` say where the loop is
    while it loses time, by the kind of what it loses it to. Of ``took_ns`` since its first call the loop
    waited ``waited_ns`` for a CPU, whoever had it.
    """

    scenario: str
    pid: int
    tid: int
    ktime_ns: int
    unix_ns: int
    effects: tuple[InjectedEffect, ...]
    losses: tuple[InjectedCause, ...] = ()
    memory: InjectedFailure | None = None
    lines: tuple[tuple[str, InjectedPlace], ...] = ()
    took_ns: int = 0
    waited_ns: int = 0

    def to_unix_ns(self, ktime_ns: int) -> int:
        """Unix time of a moment on the kernel's monotonic clock."""
        return ktime_ns - self.ktime_ns + self.unix_ns


def read_truth(line: str) -> Truth:
    """Read the line that a scenario prints when it is over."""
    document = json.loads(line)
    return Truth(
        document["scenario"],
        document["pid"],
        document["tid"],
        document["monotonic_ns"],
        document["unix_ns"],
        tuple(
            InjectedEffect(
                effect["kind"],
                effect["api"],
                effect["start_ns"],
                effect["end_ns"],
                tuple(map(_cause, effect["causes"])),
            )
            for effect in document["effects"]
        ),
        tuple(map(_cause, document.get("losses", ()))),
        _failure(document["memory"]) if document.get("memory") else None,
        tuple((kind, InjectedPlace(**at)) for kind, at in document.get("lines", {}).items()),
        document.get("took_ns", 0),
        document.get("waited_ns", 0),
    )


def _failure(memory: dict[str, Any]) -> InjectedFailure:
    places = (InjectedPlace(**memory[of]) for of in ("asked", "held"))
    return InjectedFailure(memory["cause"], memory["failed_ns"], *places)


def _cause(cause: dict[str, Any]) -> InjectedCause:
    via = cause.get("via")
    return InjectedCause(
        cause["kind"],
        cause["time_ns"],
        cause["pid"],
        cause.get("tid", cause["pid"]),
        _cause(via) if via else None,
        cause.get("resource", ""),
        InjectedPlace(**place) if (place := cause.get("place")) else None,
    )
