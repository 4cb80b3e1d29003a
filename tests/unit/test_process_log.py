"""How many lines of the log can be about one process."""

import logging
import os

from otel_gpu.procfs.process_log import MAX_LINES, WINDOW_S, ProcessLog
from otel_gpu.procfs.users import user_name

_logger = logging.getLogger(__name__)
OWN, PARENT = os.getpid(), os.getppid()


def test_lines_about_one_process_leave_room_for_those_about_another(caplog):
    """What is left out is said once, with the user, and counted."""
    log = ProcessLog()
    for number in range(1009):
        log.warning(_logger, OWN, "line %d", number)
    log.warning(_logger, PARENT, "of another")

    *lines, cut, other = caplog.messages
    assert lines == [f"line {number}" for number in range(MAX_LINES // 2)]
    assert f"about process {OWN} of user {user_name(os.getuid())}: more are left out" in cut
    assert other == "of another"
    assert [(holder.pid, count) for holder, count in log.left_out().items()] == [
        (OWN, 1009 - MAX_LINES // 2)
    ]
    assert not log.left_out()


def test_the_next_window_has_lines_again(caplog):
    now_s = 0.0
    log = ProcessLog(lambda: now_s)
    for _ in range(MAX_LINES):
        log.warning(_logger, OWN, "before")
    now_s = WINDOW_S
    log.warning(_logger, OWN, "after")

    assert caplog.messages.count("before") == MAX_LINES // 2
    assert caplog.messages[-1] == "after"
