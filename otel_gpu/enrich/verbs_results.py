"""Results of calls of verbs, and asynchronous events of network adapters."""

import errno
from typing import Final

from otel_gpu import wire

EVENTS: Final = (
    *("IBV_EVENT_CQ_ERR", "IBV_EVENT_QP_FATAL", "IBV_EVENT_QP_REQ_ERR"),
    *("IBV_EVENT_QP_ACCESS_ERR", "IBV_EVENT_COMM_EST", "IBV_EVENT_SQ_DRAINED"),
    *("IBV_EVENT_PATH_MIG", "IBV_EVENT_PATH_MIG_ERR", "IBV_EVENT_DEVICE_FATAL"),
    *("IBV_EVENT_PORT_ACTIVE", "IBV_EVENT_PORT_ERR", "IBV_EVENT_LID_CHANGE"),
    *("IBV_EVENT_PKEY_CHANGE", "IBV_EVENT_SM_CHANGE", "IBV_EVENT_SRQ_ERR"),
    *("IBV_EVENT_SRQ_LIMIT_REACHED", "IBV_EVENT_QP_LAST_WQE_REACHED"),
    *("IBV_EVENT_CLIENT_REREGISTER", "IBV_EVENT_GID_CHANGE", "IBV_EVENT_WQ_FATAL"),
)
"""The names of ``enum ibv_event_type``, by number."""

# The semantic conventions' word for an error without a name: the cause is in errno, which is not
# read.
_OTHER = "_OTHER"


def event_name(event: int) -> str:
    """Return the name of an asynchronous event; one of a later version has none."""
    return EVENTS[event] if 0 <= event < len(EVENTS) else _OTHER


def verbs_error(status: int) -> str:
    """Return what a call of verbs failed with: an error of errno(3), or an asynchronous event."""
    if status >= wire.VERBS_EVENT_STATUS:
        return event_name(status - wire.VERBS_EVENT_STATUS)
    return errno.errorcode.get(status, _OTHER)
