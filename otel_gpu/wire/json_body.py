"""
Parses and checks the JSON body of a record in one call, by the type of the body.

A recording can come from anywhere, and what follows relies on the types here: numbers fit
64 bits and are finite, text is valid UTF-8, nothing nests deeper than its type. Fields that the
type does not have are left out.
"""

from collections.abc import Callable
from typing import Annotated, Final, Generic, TypeVar

from msgspec import Meta, ValidationError
from msgspec.json import Decoder

INT64_MAX: Final = (1 << 63) - 1
UINT32_MAX: Final = (1 << 32) - 1
UINT64_MAX: Final = (1 << 64) - 1

Int64 = Annotated[int, Meta(ge=-(1 << 63), le=INT64_MAX)]
Int32 = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Count = Annotated[int, Meta(ge=0, le=INT64_MAX)]
"""OTLP and SQLite have signed 64 bits."""
UInt32 = Annotated[int, Meta(ge=0, le=UINT32_MAX)]
UInt64 = Annotated[int, Meta(ge=0)]
"""``Meta`` has no bounds above ``INT64_MAX``: the check of the body calls ``check_uint64``."""
Counts = dict[str, Count]
Scalar = str | Int64 | float | bool | None

_T = TypeVar("_T")


class BodyType(Generic[_T]):
    """
    One kind of body.

    Args:
        kind: A ``Struct`` or ``TypedDict``.
        check: Checks what the type cannot express; raises ``ValidationError``.
    """

    def __init__(self, kind: type[_T], check: Callable[[_T], None] | None = None) -> None:
        self._decoder = Decoder(kind)
        self._check = check

    def parse(self, encoded: bytes) -> _T:
        """
        Parse and check a body.

        Raises:
            ValidationError: It is JSON, but not the body that this kind has.
            ValueError: It is not JSON, or nests too deep.
        """
        try:
            body = self._decoder.decode(encoded)
        except RecursionError as error:
            raise ValueError("body: nested too deep; expected fields of a record") from error
        if self._check is not None:
            self._check(body)
        return body


def check_uint64(where: str, *values: int) -> None:
    """
    Check the upper bound of ``UInt64`` fields.

    Raises:
        ValidationError: A number has more than 64 bits.
    """
    highest = max(values, default=0)
    if highest > UINT64_MAX:
        raise ValidationError(f"{where}: expected at most 64 bits, got {highest.bit_length()}")
