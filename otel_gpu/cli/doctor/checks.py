"""Results of checks, and the JSON document of ``doctor``."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, NamedTuple

Status = Literal["ok", "warning", "missing"]


class CheckResult(NamedTuple):
    """
    The result of one check. Its name is stable in ``doctor --json``.

    ``missing``: nothing can be captured. ``warning``: something will not be seen or sent.
    """

    name: str
    status: Status
    detail: str
    hint: str = ""


ok = partial(CheckResult, "", "ok")
warning = partial(CheckResult, "", "warning")
missing = partial(CheckResult, "", "missing")


def named(**findings: CheckResult) -> Iterator[CheckResult]:
    """Set the names of results, in order."""
    for name, finding in findings.items():
        yield finding._replace(name=name)


def to_json(findings: list[CheckResult], processes: list[CheckResult]) -> dict[str, Any]:
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
    return all(finding.status != "missing" for finding in findings)
