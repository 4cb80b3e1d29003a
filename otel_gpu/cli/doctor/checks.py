"""Results of checks, and the JSON document of ``doctor``."""

from collections.abc import Iterator
from enum import StrEnum
from functools import partial
from typing import NamedTuple


class CheckStatus(StrEnum):
    """Whether a capture works."""

    OK = "ok"
    WARNING = "warning"
    """Something will not be seen or sent."""
    MISSING = "missing"
    """Nothing can be captured."""


class CheckResult(NamedTuple):
    """The result of one check. Its name is stable in ``doctor --json``."""

    name: str
    status: CheckStatus
    detail: str
    hint: str = ""


ok = partial(CheckResult, "", CheckStatus.OK)
warning = partial(CheckResult, "", CheckStatus.WARNING)
missing = partial(CheckResult, "", CheckStatus.MISSING)


def named(**findings: CheckResult) -> Iterator[CheckResult]:
    """Set the names of results, in order."""
    for name, finding in findings.items():
        yield finding._replace(name=name)


def to_json(findings: list[CheckResult], processes: list[CheckResult]) -> dict[str, object]:
    """Return the document of ``doctor --json``."""
    everything = [*findings, *processes]
    return {
        "schema_version": 1,
        "can_capture": can_capture(everything),
        "findings": [finding._asdict() for finding in findings],
        "processes": [finding._asdict() for finding in processes],
    }


def can_capture(findings: list[CheckResult]) -> bool:
    """Return whether no requirement is missing."""
    return all(finding.status != CheckStatus.MISSING for finding in findings)
