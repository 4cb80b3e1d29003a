"""What a service manager is told."""

import os
import socket

import pytest

from otel_gpu.cli.service.notify import Notifier


class Clock:
    """A monotonic clock that moves when it is told to."""

    def __init__(self):
        self.now_s = 50.0

    def __call__(self):
        return self.now_s


class Manager:
    """The socket of a service manager."""

    def __init__(self, address):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.setblocking(False)

    def heard(self):
        words = []
        while True:
            try:
                words.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return words

    def close(self):
        self._socket.close()


@pytest.fixture(params=["file", "abstract"])
def manager(request, tmp_path):
    address = str(tmp_path / "notify")
    if request.param == "abstract":
        address = f"@otel-gpu-test-{os.getpid()}"
    manager = Manager(address.replace("@", "\0", 1))
    manager.address = address
    yield manager
    manager.close()


def test_the_first_turn_says_that_the_capture_has_begun(manager):
    """
    Then the watchdog gets its word twice per interval, and a status when there is another one.
    """
    clock = Clock()
    said = ["capturing"]
    environ = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "20000000"}
    notifier = Notifier(environ, clock)
    turns = []
    for second in range(26):
        clock.now_s = 50.0 + second
        said[0] = "capturing" if second < 12 else "errors: store 3\nmore"
        notifier.notify(lambda: said[0])
        turns += [(second, words) for words in manager.heard()]
    notifier.stop()
    notifier.notify(lambda: "too late")

    assert notifier.is_watched is False
    assert turns == [
        (0, "READY=1\nWATCHDOG=1\nSTATUS=capturing"),
        (10, "WATCHDOG=1"),
        (15, "STATUS=errors: store 3 more"),
        (20, "WATCHDOG=1"),
    ]
    assert manager.heard() == ["STOPPING=1"]


@pytest.mark.parametrize(
    "watchdog",
    [{}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}],
    ids=["none", "malformed", "of another process"],
)
def test_without_a_watchdog_no_words_are_due(manager, watchdog):
    """Only that it began, and what it does."""
    notifier = Notifier({"NOTIFY_SOCKET": manager.address, **watchdog}, clock := Clock())
    for _ in range(9):
        clock.now_s += 1
        notifier.notify(lambda: "capturing")

    assert not notifier.is_watched
    notifier._socket.close()
    assert manager.heard() == ["READY=1\nSTATUS=capturing"]


@pytest.mark.parametrize("address", ["", "relative", "vsock:2:1234", "/nowhere/notify"])
def test_nobody_listens(address):
    """No socket, none that is known, or one that is gone: the capture does not notice."""
    notifier = Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"})
    notifier.notify(lambda: "capturing")
    notifier.stop()


def test_a_full_socket_does_not_block(manager):
    """A service manager that does not read delays nothing; the word is due again at once."""
    clock = Clock()
    notifier = Notifier({"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "2000"}, clock)
    assert notifier.is_watched
    for _ in range(1_000):
        clock.now_s += 1
        notifier.notify(lambda: "capturing")
    heard = manager.heard()
    notifier.notify(lambda: "capturing")
    notifier._socket.close()

    assert 1 < len(heard) < 1_000
    assert manager.heard() == ["WATCHDOG=1"]
