"""
Arguments: what a tool can be asked with, as a JSON schema and as a check.

One table says both, so that what is announced is what is accepted.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from otel_gpu.errors import OtelGpuError
from otel_gpu.faces.mcp.answers import inert

_MAX_MOMENT = 64
_MAX_PIDS = 64
_LAST_PID = (1 << 32) - 1
_SHOWN = 60


class ArgumentError(OtelGpuError):
    """A tool was asked with what it does not take."""


class Argument(NamedTuple):
    """
    One argument.

    ``kind`` is ``integer``, ``number``, ``text`` or ``integers``. ``least`` and ``most``
    bound a number, or the length of a text or a list.
    """

    name: str
    kind: str
    text: str
    least: float = 0
    most: float = 0
    choices: tuple[str, ...] = ()

    def schema(self) -> dict[str, Any]:
        """Return what the protocol says of it."""
        if self.kind == "text":
            found: dict[str, Any] = {"type": "string", "maxLength": self.most}
            if self.choices:
                found["enum"] = list(self.choices)
        elif self.kind == "integers":
            items = {"type": "integer", "minimum": 0, "maximum": _LAST_PID}
            found = {"type": "array", "items": items, "maxItems": self.most}
        else:
            found = {"type": self.kind, "minimum": self.least, "maximum": self.most}
        return {**found, "description": self.text}

    def check(self, value: object) -> Any:  # noqa: ANN401 -- as the kind says
        """
        Return a value as the tool takes it.

        Raises:
            ArgumentError: It is none of this kind.
        """
        match self.kind:
            case "text" if isinstance(value, str) and len(value) <= self.most:
                if not self.choices or value in self.choices:
                    return value
            case "integer" | "number" if _is_number(value, whole=self.kind == "integer"):
                if self.least <= value <= self.most:  # type: ignore[operator] # a number, as was seen
                    return value
            case "integers" if isinstance(value, list) and len(value) <= self.most:
                if all(_is_number(pid, whole=True) and 0 <= pid <= _LAST_PID for pid in value):
                    return tuple(value)
            case _:
                pass
        raise ArgumentError(f"{self.name} must be {self._wanted()}, not {_shown(value)}")

    def _wanted(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.kind == "text":
            return f"text of at most {self.most:,.0f} characters"
        if self.kind == "integers":
            return f"a list of at most {self.most:.0f} process ids"
        return f"{'an integer' if self.kind == 'integer' else 'a number'} from {self.least:g} to {self.most:g}"


class Question(NamedTuple):
    """
    What a tool is asked.

    Attributes:
        begin: From when on, as ``parse_moment`` of the command line reads it; None: from
            the beginning.
        end: Until when; None: to the end.
        pids: About these processes; empty: all.
        values: The tool's own arguments, those that were given.
    """

    begin: str | None
    end: str | None
    pids: tuple[int, ...]
    values: Mapping[str, Any]


WINDOW = (
    Argument(
        "from",
        "text",
        "What happened from then on: Unix seconds, ISO 8601 in UTC, -30s before the end of the "
        "capture, or +1.5s after its beginning. Default: the beginning.",
        most=_MAX_MOMENT,
    ),
    Argument(
        "to", "text", "What happened before that; as from. Default: the end.", most=_MAX_MOMENT
    ),
    Argument("pids", "integers", "Only these processes. Default: all.", most=_MAX_PIDS),
)


def schema_of(arguments: Sequence[Argument]) -> dict[str, Any]:
    """Return the JSON schema of a tool's arguments; all are optional."""
    return {
        "type": "object",
        "properties": {argument.name: argument.schema() for argument in arguments},
        "additionalProperties": False,
    }


def read_question(arguments: Sequence[Argument], given: Mapping[str, Any]) -> Question:
    """
    Return the question that was asked.

    Raises:
        ArgumentError: An argument is not known, or not what it has to be.
    """
    known = {argument.name: argument for argument in arguments}
    for name in given:
        if name not in known:
            raise ArgumentError(
                f"there is no argument {_shown(name)}",
                hint="there are: " + (", ".join(known) or "none"),
            )
    values = {name: known[name].check(value) for name, value in given.items() if value is not None}
    return Question(
        values.pop("from", None), values.pop("to", None), values.pop("pids", ()), values
    )


def _is_number(value: object, *, whole: bool) -> bool:
    return not isinstance(value, bool) and isinstance(value, int if whole else int | float)


def _shown(value: object) -> str:
    return inert(repr(value)[: _SHOWN * 4], _SHOWN)
