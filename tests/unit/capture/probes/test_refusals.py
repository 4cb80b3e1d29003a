"""Who is named when something was refused."""

import logging
import os

from otel_gpu.capture.probes.refusals import Refusals
from otel_gpu.capture.processes.unread import Unread
from otel_gpu.limits.shares import EntryOwner, of_user
from otel_gpu.procfs.process_log import MAX_LINES, ProcessLog
from otel_gpu.wire import UNKNOWN_USER

GONE = 1 << 30


def test_a_user_that_is_not_known_has_no_number(caplog):
    refusals = Refusals()
    refusals.add("files", EntryOwner(GONE, UNKNOWN_USER), 11)
    refusals.describe([])
    Unread().add(GONE, -1, "its perf map", "it is gone")

    share, unread = caplog.messages
    assert f"process ({GONE}) of a user that is not known had the share" in share
    assert f"of process {GONE} of a user that is not known is not read" in unread
    assert [one["user"] for one in refusals.named] == [""]
    assert of_user(0) == "of user 0"


def test_lines_about_a_process_that_is_gone(caplog, monkeypatch):
    monkeypatch.setattr("otel_gpu.procfs.process_log.real_uid", lambda _pid: UNKNOWN_USER)
    log = ProcessLog()
    for _ in range(MAX_LINES):
        log.warning(logging.getLogger(), GONE, "line")

    assert any("of a user that is not known: more are" in line for line in caplog.messages)


def test_a_name_that_is_learned_later_is_taken():
    refusals = Refusals()
    refusals.add("files", EntryOwner(GONE, 7), 11)
    refusals.add("files", EntryOwner(GONE, 7), 2, name="short")
    refusals.add("files", EntryOwner(os.getpid(), 7), name="other")
    refusals.describe([])

    assert refusals.named[0]["name"] == "short"
    assert [one["count"] for one in refusals.named] == [13, 1]
