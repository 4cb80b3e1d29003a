"""Arguments of tools: pydantic models that are both announced and validated."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from otel_gpu.errors import OtelGpuError
from otel_gpu.mcp.answers import sanitize

LAST_ID = (1 << 32) - 1
"""The largest process or thread id that is accepted."""

_MAX_TIME = 64
_MAX_PIDS = 64
_SHOWN = 60

TimeText = Annotated[str, Field(max_length=_MAX_TIME)]


class ArgumentError(OtelGpuError):
    """A tool got a wrong argument."""


class Arguments(BaseModel):
    """The arguments of a tool; all are optional, others are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Question(Arguments):
    """A part of a capture; ``begin`` and ``end`` are texts for times, empty: open."""

    begin: TimeText = Field(
        "",
        alias="from",
        description="Start of the window: Unix seconds, ISO 8601 in UTC, -30s before the "
        "end of the capture, or +1.5s after its beginning. Default: the beginning.",
    )
    end: TimeText = Field(
        "", alias="to", description="End of the window; same formats as from. Default: the end."
    )
    pids: Annotated[list[Annotated[int, Field(ge=0, le=LAST_ID)]], Field(max_length=_MAX_PIDS)] = (
        Field([], description="Only these processes. Default: all.")
    )


Model = TypeVar("Model", bound=Arguments)


def rows(most: int, what: str) -> FieldInfo:
    """Return a field for the maximal number of rows."""
    return Field(ge=1, le=most, description=f"The most {what}.")  # type: ignore[no-any-return]


def read_arguments(model: type[Model], given: Mapping[str, object]) -> Model:
    """
    Return validated arguments, null counting as not given; ``ArgumentError`` names the wrong one.
    """
    stated = {name: value for name, value in given.items() if value is not None}
    try:
        return model.model_validate(stated)
    except ValidationError as error:
        known = model.model_json_schema()["properties"]
        names = [str(one["loc"][0]) for one in error.errors(include_url=False)]
        for name in stated.keys() - known.keys():
            raise ArgumentError(
                f"unknown argument {_shown(name)}", hint=f"known: {', '.join(known)}"
            ) from None
        wanted, value = _wanted(known[names[0]]), stated[names[0]]
        raise ArgumentError(f"{names[0]} must be {wanted}, not {_shown(value)}") from None


def _wanted(schema: Mapping[str, Any]) -> str:
    if choices := schema.get("enum"):
        return "one of " + ", ".join(choices)
    match schema["type"]:
        case "string":
            return f"text of at most {schema['maxLength']:,} characters"
        case "array":
            return f"a list of at most {schema['maxItems']} process ids"
        case kind:
            article = "an" if kind == "integer" else "a"
            return f"{article} {kind} from {schema['minimum']:g} to {schema['maximum']:g}"


def _shown(value: object) -> str:
    return sanitize(repr(value)[: _SHOWN * 4], _SHOWN)
