"""What an answer of NCCL's RAS service says, in JSON or as text: the communicators with their ranks."""

# JSON lists every rank of every communicator (NCCL 2.28.7 and later). Text lists groups of communicators,
# and by their hash only those with which something is wrong; ranks are numbered where they are few.

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from otel_gpu.capture.foreign_json import ForeignJsonError, parse_foreign
from otel_gpu.stacks.frames import clean

MAX_COMMUNICATORS: Final = 64
"""That are told; those with which something is wrong come first."""
MAX_RANKS: Final = 16
"""Of a communicator, that are told one by one: as many absent ones, and as many that are behind."""
MAX_LISTED: Final = 128
"""Of all communicators."""
MAX_OPERATIONS: Final = 16
MAX_NAME: Final = 64
"""Characters of a host, of an operation or of a version."""
MAX_LINE: Final = 4_096
"""Bytes of a line that are looked at."""
MAX_NUMBER: Final = (1 << 62) - 1
MAX_CONTAINERS: Final = 1 << 17
"""Of an answer in JSON; a rank of a communicator is three of them."""
MAX_LINES: Final = 1 << 17
"""Of an answer as text."""
STATES: Final = ("unresponsive", "dead", "missing")
"""Why a rank says nothing; ``missing``: its process answers, and does not name the communicator."""

_OK, _IN_PROGRESS = 0, 7
_ERRORS: Final = {
    1: "ncclUnhandledCudaError",
    2: "ncclSystemError",
    3: "ncclInternalError",
    4: "ncclInvalidArgument",
    5: "ncclInvalidUsage",
    6: "ncclRemoteError",
    8: "ncclTimeout",
}
_HASH = re.compile(r"(?:0x)?([0-9a-f]{1,16})\Z")
_ROW = re.compile(
    r"^ *(\d{1,9}) +(\d{1,9}) +(\d{1,9}) +\S+ +(\d{1,9}) +\d{1,9} +([A-Z]+) +([A-Z,]+)\s*$"
)
_HEADING = re.compile(r"^#(\d{1,9})-\d{1,9} \(([0-9a-f]{1,16})\) (INCOMPLETE|ERROR|MISMATCH)\s*$")
_ABSENT = re.compile(r"^  Missing communicator data from (\d{1,9}) rank")
_ABSENT_LIST = re.compile(r"^  The missing ranks?: ([0-9, ]+)$")
_RANK = re.compile(r"^  Rank (\d{1,9})\b(?:.* managed by process (\d{1,9}) on node (\S{1,256}))?")
_COUNT = re.compile(r"^  \d{1,9} ranks? have launched up to operation (\d{1,18})$")
_NO_COUNT = re.compile(r"^  \d{1,9} ranks? have not launched any operations$")
_OWN_COUNT = re.compile(r"^  Rank (\d{1,9}) has launched up to operation (\d{1,18})\b")
_OWN_NO_COUNT = re.compile(r"^  Rank (\d{1,9}) has not launched any operations\b")
_OPERATION = re.compile(
    r"^  Communicator ranks have different (?:collective|(\S{1,64})) operation counts$"
)
_FAILED = re.compile(r"^  (?:Initialization|Asynchronous) errors? on (\d{1,9}) ranks?$")
_LOST = re.compile(r"^  Missing communicator data from (\d{1,9}) job process")
_DEAD = re.compile(r"^  (\d{1,9}) job process(?:es are| is) considered dead")
_TIMEOUTS = re.compile(r"^  Encountered (\d{1,9}) communication timeout")
_VERSION = re.compile(r"^NCCL version (\S{1,64})")
_TOOK = re.compile(r"^Communicators\.\.\. \((\d{1,9}\.\d{1,9})s\)")


def read_json(data: bytes) -> dict[str, Any]:
    """
    Return what an answer in JSON says; see ``decode.ras_bodies``.

    Raises:
        ForeignJsonError: It is none, or says nothing of communicators.
    """
    body = parse_foreign(data, MAX_CONTAINERS)
    if type(body) is not dict or type(body.get("communicators")) is not list:
        raise ForeignJsonError("it says nothing of communicators")
    found = [_communicator(one) for one in body["communicators"] if type(one) is dict]
    known = [one for one in found if one is not None]
    service = body.get("ras")
    service = service if type(service) is dict else {}
    took_s = service.get("collection_time_sec")
    return {
        "nccl_version": _text(body.get("nccl_version")),
        "timeouts": _number(service.get("timeouts_count")),
        "collection_s": _seconds(took_s),
        **_chosen(known, len(body["communicators"])),
    }


def _communicator(said: Mapping[str, Any]) -> dict[str, Any] | None:
    name = _HASH.match(said["hash"]) if type(said.get("hash")) is str else None
    ranks, absent = said.get("ranks"), said.get("missing_ranks")
    if name is None or type(ranks) is not list:
        return None
    silent = [one for one in absent if type(one) is dict] if type(absent) is list else []
    speaking = [one for one in ranks if type(one) is dict]
    counts: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
    errors: Counter[str] = Counter()
    for rank in speaking:
        for operation, count in _pairs(rank.get("collective_counts")):
            counts.setdefault(operation, []).append((count, rank))
        status = rank.get("status")
        errors.update(_errors_of(status if type(status) is dict else {}))
    calls, behind = {}, []
    for operation, found in counts.items():
        most = max(count for count, _ in found)
        # Who does not speak of an operation has not called it less often than the others.
        calls[operation] = [min(count for count, _ in found), most]
        behind += [
            {**_rank(rank), "operation": operation, "calls": count}
            for count, rank in found
            if count < most
        ]
    states = Counter(map(_state, silent))
    return {
        "id": f"{int(name[1], 16):016x}",
        "size": _number(said.get("size")),
        "answering": len(speaking),
        "silent": dict(states),
        "absent": [{**_rank(one), "state": _state(one)} for one in silent[:MAX_RANKS]],
        "errors": dict(errors),
        "calls": dict(list(calls.items())[:MAX_OPERATIONS]),
        "behind": behind[:MAX_RANKS],
    }


def _errors_of(status: Mapping[str, Any]) -> Iterator[str]:
    for name in ("init_state", "async_error"):
        number = status.get(name)
        if type(number) is int and number not in (_OK, _IN_PROGRESS):
            yield _ERRORS.get(number, "_OTHER")
    if status.get("abort_flag") is True:
        yield "aborted"


def _state(said: Mapping[str, Any]) -> str:
    status = said.get("status")
    status = status if type(status) is dict else {}
    if status.get("considered_dead") is True:
        return "dead"
    return "unresponsive" if status.get("unresponsive") is True else "missing"


def _rank(said: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "rank": _number(said.get("rank")),
        "host": _text(said.get("host")),
        "pid": _number(said.get("pid")),
    }


def _pairs(counts: object) -> Iterator[tuple[str, int]]:
    if type(counts) is not dict or len(counts) > MAX_OPERATIONS:
        return
    for name, count in counts.items():
        yield clean(name)[:MAX_NAME], _number(count)


class _Text:
    """Takes an answer as text, line by line."""

    def __init__(self) -> None:
        self.head: dict[str, Any] = {"nccl_version": "", "timeouts": 0, "collection_s": 0.0}
        self.count = 0
        self.found: dict[str, dict[str, Any]] = {}
        self.is_status = False
        self._sizes: dict[str, int] = {}
        self._one: dict[str, Any] | None = None
        self._section = self._operation = ""
        self._count = -1

    def take(self, line: str) -> None:
        if heading := _HEADING.match(line):
            self._begin(*heading.groups())
        elif row := _ROW.match(line):
            self.is_status = True
            self.count += int(row[2])
            if len(self._sizes) < MAX_COMMUNICATORS:
                self._sizes[row[1]] = int(row[4])
        elif self._one is not None and line.startswith("  "):
            self._detail(self._one, line)
        else:
            self._one = None
            self._summary(line)

    def _begin(self, group: str, name: str, section: str) -> None:
        key = f"{int(name, 16):016x}"
        self._section, self._operation, self._count = section, "", -1
        self._one = self.found.get(key)
        if self._one is None and len(self.found) < MAX_COMMUNICATORS:
            size = self._sizes.get(group, 0)
            self._one = self.found[key] = {
                "id": key,
                "size": size,
                "answering": size,
                "silent": {},
                "absent": [],
                "errors": {},
                "calls": {},
                "behind": [],
            }

    def _summary(self, line: str) -> None:
        head = self.head
        if version := _VERSION.match(line):
            head["nccl_version"] = clean(version[1])
        elif took := _TOOK.match(line):
            self.is_status = True
            head["collection_s"] = float(took[1])
        elif line.startswith("No communicator data collected!"):
            self.is_status = True
        elif timeouts := _TIMEOUTS.match(line):
            head["timeouts"] = int(timeouts[1])
        elif dead := _DEAD.match(line):
            head["dead_processes"] = int(dead[1])
        elif lost := _LOST.match(line):
            head["unresponsive_processes"] = int(lost[1])

    def _detail(self, one: dict[str, Any], line: str) -> None:
        match self._section:
            case "INCOMPLETE":
                self._absent(one, line)
            case "ERROR":
                if failed := _FAILED.match(line):
                    errors = one["errors"]
                    errors["_OTHER"] = errors.get("_OTHER", 0) + int(failed[1])
            case _:
                self._behind(one, line)

    def _absent(self, one: dict[str, Any], line: str) -> None:
        if count := _ABSENT.match(line):
            one["silent"] = {"unresponsive": int(count[1])}
            one["answering"] = max(0, one["size"] - int(count[1]))
        ranks: list[tuple[str, str, str]] = []
        if listed := _ABSENT_LIST.match(line):
            numbers = islice(re.finditer(r"\d{1,9}", listed[1]), MAX_RANKS)
            ranks = [(number[0], "0", "") for number in numbers]
        elif rank := _RANK.match(line):
            ranks = [(rank[1], rank[2] or "0", rank[3] or "")]
        for number, pid, host in ranks[: MAX_RANKS - len(one["absent"])]:
            absent = {"rank": int(number), "host": clean(host)[:MAX_NAME], "pid": int(pid)}
            one["absent"].append(absent | {"state": "unresponsive"})

    def _behind(self, one: dict[str, Any], line: str) -> None:
        rank = _RANK.match(line)
        if operation := _OPERATION.match(line):
            self._operation, self._count = clean(operation[1] or "collective"), -1
        elif count := _COUNT.match(line):
            self._count = int(count[1])
        elif _NO_COUNT.match(line):
            self._count = 0
        elif own := _OWN_COUNT.match(line):
            self._count = int(own[2])
        elif _OWN_NO_COUNT.match(line):
            self._count = 0
        if not self._operation or self._count < 0 or len(one["calls"]) > MAX_OPERATIONS:
            return
        least, most = one["calls"].setdefault(self._operation, [self._count, self._count])
        one["calls"][self._operation] = [min(least, self._count), max(most, self._count)]
        if rank is not None and len(one["behind"]) < MAX_RANKS:
            said = {
                "rank": int(rank[1]),
                "host": clean(rank[3] or "")[:MAX_NAME],
                "pid": int(rank[2] or 0),
            }
            one["behind"].append(said | {"operation": self._operation, "calls": self._count})


def read_text(data: bytes) -> dict[str, Any]:
    """
    Return what an answer as text says; see ``decode.ras_bodies``.

    Raises:
        ForeignJsonError: It is no status.
    """
    text = _Text()
    if data.count(b"\n") > MAX_LINES:
        raise ForeignJsonError("it has too many lines")
    for line in data.split(b"\n"):
        text.take(line[:MAX_LINE].decode("utf-8", "replace").rstrip("\r"))
    if not text.is_status:
        raise ForeignJsonError("it is no status")
    found = list(text.found.values())
    for one in found:
        # Outliers may be ahead as well.
        most = {name: counts[1] for name, counts in one["calls"].items()}
        one["behind"] = [rank for rank in one["behind"] if rank["calls"] < most[rank["operation"]]]
    return {**text.head, **_chosen(found, max(text.count, len(found)))}


def _chosen(found: list[dict[str, Any]], count: int) -> dict[str, Any]:
    found.sort(key=lambda one: not (one["silent"] or one["errors"] or one["behind"]))
    told, left = found[:MAX_COMMUNICATORS], MAX_LISTED
    for one in told:
        for listed in ("absent", "behind"):
            one[listed] = one[listed][:left]
            left -= len(one[listed])
    return {"communicators_count": count, "communicators": told}


def _number(value: object) -> int:
    return value if type(value) is int and 0 <= value <= MAX_NUMBER else 0


def _seconds(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9:  # noqa: PLR2004 -- 30 years
        return float(value)
    return 0.0


def _text(value: object) -> str:
    return clean(value)[:MAX_NAME] if type(value) is str else ""
