"""What the doctor's checks find, and what follows from it."""

from typing import Any, Literal, NamedTuple

Status = Literal["ok", "warning", "missing"]


class Finding(NamedTuple):
    """
    What one check found.

    Attributes:
        name: Stable; scripts may look for it in ``doctor --json``.
        status: ``missing`` means that nothing can be captured; ``warning`` that
            something will not be seen or sent.
        detail: What was found.
        hint: What the operator can do; empty where nothing is wrong.
    """

    name: str
    status: Status
    detail: str
    hint: str = ""


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
