"""
What NCCL's own service for reliability (RAS) says of a job: which ranks do not answer, which are behind.

NCCL 2.24 and later listens on ``localhost:28028`` in one process of each host, and one question is of the
whole job.
"""

# Who answers may be anybody
# --------------------------
#
# Any program of the host may listen on that port, and the service waits for ranks that hang. So a thread
# of its own asks, with a deadline for the whole conversation and a bound on what is taken; what it says
# is checked as a file of a stranger is.

import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from otel_gpu.capture.foreign_json import ForeignJsonError
from otel_gpu.capture.patient_reader import PatientReader
from otel_gpu.capture.ras_status import read_json, read_text

MAX_BYTES: Final = 16 << 20
"""Of an answer; a rank of a communicator takes about 600."""
DEADLINE_S: Final = 20.0
"""For all that is said: the service itself waits for up to 10 s for ranks that do not answer."""
CONNECT_S: Final = 1.0

_READ_BYTES = 64 << 10
_MAX_LINE = 1_024
_HELLO = b"CLIENT PROTOCOL 2\n"
_GREETING = b"SERVER PROTOCOL "
_SET_JSON = b"SET FORMAT json\n"
_OK = b"OK"
# A service without JSON answers this to what it does not know.
_REFUSED = b"ERROR"


class RasError(Exception):
    """A conversation that failed; its text is the reason that is counted."""


class RasService(PatientReader):
    """
    Asks the service again and again.

    Args:
        address: ``host:port``.
        interval_s: How often.
        deadline_s: How long a conversation may take.
    """

    def __init__(self, address: str, interval_s: float, deadline_s: float = DEADLINE_S) -> None:
        super().__init__("otel-gpu-ras")
        self._address = address
        self._interval_s = interval_s
        self._deadline_s = deadline_s
        self._reading: dict[str, Any] | None = None
        self._failed: Counter[str] = Counter()
        self._is_news = False
        self._was_there = False

    def take(self) -> dict[str, Any] | None:
        """Return what is new since the last time, as RECORD_RAS says it; None: nothing."""
        with self._lock:
            if not self._is_news:
                return None
            self._is_news = False
            reading, self._reading = self._reading, None
            return {**(reading or {}), "address": self._address, "failed": dict(self._failed)}

    def _turn(self) -> float:
        reading, failure = None, ""
        try:
            reading = ask(self._address, self._deadline_s)
        except RasError as error:
            failure = str(error)
        except ConnectionRefusedError:
            # There is no job, which is no failure; that it is gone is news once.
            reading = {"is_there": False} if self._was_there else None
            self._was_there = False
        except TimeoutError:
            failure = "timeout"
        except OSError as error:
            failure = type(error).__name__
        with self._lock:
            if failure:
                self._failed[failure] += 1
            if reading is not None:
                self._reading = reading
                self._was_there = reading["is_there"]
            self._is_news = self._is_news or bool(failure) or reading is not None
        return self._interval_s


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, where an IPv6 address is in brackets."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def ask(
    address: str, deadline_s: float = DEADLINE_S, clock: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """
    Return what the service says of its job, as RECORD_RAS has it.

    Raises:
        RasError: It says something else, too much, or not enough.
        OSError: It cannot be reached, or takes too long (TimeoutError).
    """
    until_s = clock() + deadline_s
    with socket.create_connection(split_address(address), min(CONNECT_S, deadline_s)) as connection:
        talk = _Conversation(connection, until_s, clock)
        talk.say(_HELLO)
        if not talk.line().startswith(_GREETING):
            raise RasError("protocol")
        talk.say(_SET_JSON)
        answer = talk.line()
        if answer != _OK and not answer.startswith(_REFUSED):
            raise RasError("protocol")
        is_json = answer == _OK
        talk.say(b"STATUS\n" if is_json else b"VERBOSE STATUS\n")
        data = talk.rest()
    try:
        found = read_json(data) if is_json else read_text(data)
    except ForeignJsonError:
        raise RasError("malformed") from None
    return {"is_there": True, "format": "json" if is_json else "text", **found}


class _Conversation:
    """Lines and answers of a connection, until a moment."""

    def __init__(
        self, connection: socket.socket, until_s: float, clock: Callable[[], float]
    ) -> None:
        self._connection = connection
        self._until_s = until_s
        self._clock = clock
        self._read = bytearray()

    def say(self, line: bytes) -> None:
        self._wait()
        self._connection.sendall(line)

    def line(self) -> bytes:
        """Return the next line, without its end."""
        while (at := self._read.find(b"\n")) < 0:
            if len(self._read) > _MAX_LINE:
                raise RasError("protocol")
            if not self._more():
                raise RasError("closed")
        line = bytes(self._read[:at]).rstrip(b"\r")
        del self._read[: at + 1]
        return line

    def rest(self) -> bytes:
        """Return all that comes until the other end closes."""
        while self._more():
            if len(self._read) > MAX_BYTES:
                raise RasError("too_large")
        return bytes(self._read)

    def _more(self) -> bool:
        # Byte by byte it may take for ever: the deadline is of all of it.
        self._wait()
        data = self._connection.recv(_READ_BYTES)
        self._read += data
        return bool(data)

    def _wait(self) -> None:
        left_s = self._until_s - self._clock()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
