"""What the doctor's checks find, and what follows from it."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, NamedTuple

Status = Literal["ok", "warning", "missing"]


class CheckResult(NamedTuple):
    """
    What one check found; scripts may look for its name in ``doctor --json``.

    ``missing``: nothing can be captured; ``warning``: something will not be seen or sent.
    """

    name: str
    status: Status
    detail: str
    hint: str = ""


ok = partial(CheckResult, "", "ok")
warning = partial(CheckResult, "", "warning")
missing = partial(CheckResult, "", "missing")


def named(**findings: CheckResult) -> Iterator[CheckResult]:
    """Give findings the names of what was checked."""
    for name, finding in findings.items():
        yield finding._replace(name=name)


def to_json(findings: list[CheckResult], processes: list[CheckResult]) -> dict[str, Any]:
    """The document of ``doctor --json``."""
    everything = [*findings, *processes]
    return {
        "schema_version": 1,
        "can_capture": can_capture(everything),
        "findings": [finding._asdict() for finding in findings],
        "processes": [finding._asdict() for finding in processes],
    }


def can_capture(findings: list[CheckResult]) -> bool:
    """Nothing that is indispensable is missing."""
    return all(finding.status != "missing" for finding in findings)
