"""Culprits and waits as columns, and back."""

from collections.abc import Sequence
from typing import Any

from otel_gpu.enrich.identity.identities import Culprit
from otel_gpu.enrich.thread_times import Wait
from otel_gpu.enrich.waits.reasons import read_reason
from otel_gpu.recorder.rows.resource_text import read_resource, resource_text
from otel_gpu.recorder.storable_text import clean
from otel_gpu.recorder.tables.columns import Row


def who_columns(who: Culprit | None) -> Row:
    """Return the columns pid, tid and comm; None: all NULL."""
    return (None, None, None) if who is None else (who.pid, who.tid, clean(who.comm))


def wait_columns(wait: Wait) -> Row:
    """Return the columns of ``waits`` from ``api`` on."""
    resource = None if wait.resource is None else resource_text(wait.resource)
    who, end = who_columns(wait.who), who_columns(wait.end)
    return (wait.api, *who, *end, wait.end_state, clean(wait.end_reason), resource)


def read_wait(columns: Sequence[Any]) -> Wait:
    """Return the wait of these columns; an invalid resource becomes None."""
    api, *found, end_state, end_reason, resource = columns
    who, end = _read_who(*found[:3]), _read_who(*found[3:])
    return Wait(
        api=api,
        who=who,
        end=end,
        end_state=end_state,
        end_reason=read_reason(end_reason),
        resource=read_resource(resource),
    )


def _read_who(pid: int | None, tid: int | None, comm: str | None) -> Culprit | None:
    return None if pid is None else Culprit(pid, tid or 0, comm or "")
