"""What the doctor's checks find, and what follows from it."""

from typing import Any, Literal, NamedTuple

Status = Literal["ok", "warning", "missing"]


class Finding(NamedTuple):
    """
    What one check found; scripts may look for its name in ``doctor --json``.

    ``missing``: nothing can be captured; ``warning``: something will not be seen or sent.
    """

    name: str
    status: Status
    detail: str
    hint: str = ""


def ok(name: str, detail: str) -> Finding:
    """Return that nothing is wrong."""
    return Finding(name, "ok", detail)


def warning(name: str, detail: str, hint: str = "") -> Finding:
    """Return that something will not be seen or sent."""
    return Finding(name, "warning", detail, hint)


def missing(name: str, detail: str, hint: str = "") -> Finding:
    """Return that nothing can be captured."""
    return Finding(name, "missing", detail, hint)


def to_json(findings: list[Finding], processes: list[Finding]) -> dict[str, Any]:
    """The document of ``doctor --json``."""
    everything = [*findings, *processes]
    return {
        "schema_version": 1,
        "can_capture": can_capture(everything),
        "findings": [finding._asdict() for finding in findings],
        "processes": [finding._asdict() for finding in processes],
    }


def can_capture(findings: list[Finding]) -> bool:
    """Nothing that is indispensable is missing."""
    return all(finding.status != "missing" for finding in findings)
