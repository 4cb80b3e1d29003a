"""What calls of verbs returned."""

import pytest

from otel_gpu import wire
from otel_gpu.enrich.cuda_errors import error_name
from otel_gpu.enrich.verbs_results import EVENTS, event_name


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (22, "EINVAL"),
        (12, "ENOMEM"),
        (-1, "_OTHER"),
        (999, "_OTHER"),
        (wire.VERBS_EVENT_STATUS + 10, "IBV_EVENT_PORT_ERR"),
        (wire.VERBS_EVENT_STATUS + 77, "_OTHER"),
    ],
)
def test_a_status_is_an_error_or_an_event(status, name):
    """Where only errno would say why, the semantic conventions' fallback stands."""
    assert error_name(wire.LAYER_VERBS, status) == name


def test_events_have_the_numbers_of_verbs():
    """As infiniband/verbs.h numbers them, the last one of rdma-core 56."""
    assert len(EVENTS) == 20
    assert event_name(0) == "IBV_EVENT_CQ_ERR"
    assert event_name(1) == "IBV_EVENT_QP_FATAL"
    assert event_name(8) == "IBV_EVENT_DEVICE_FATAL"
    assert event_name(19) == "IBV_EVENT_WQ_FATAL"
    assert event_name(wire.COPY_NONE) == "_OTHER"
