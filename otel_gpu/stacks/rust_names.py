"""
Names of Rust functions as text.

Rust has two manglings. The old one looks like C++ with escapes and a hash at the end. The new
one ("v0", the default of newer compilers) is a small language in which a name may refer back
to its own parts; hashes, lifetimes and crate numbers are left out here. A name that does not
follow the grammar, or has parts that we do not know, has no text.
"""

import re
from collections.abc import Callable
from typing import Final

_LEGACY_END = re.compile(r"17h[0-9a-f]{16}E$")
_SUFFIX = re.compile(r"\.(?:llvm|cold|part|constprop|isra)[.0-9A-Za-z@]*$")
_ESCAPE = re.compile(r"\$(SP|BP|RF|LT|GT|LP|RP|C|u[0-9a-f]{1,6})\$")
_ESCAPED = {
    "SP": "@", "BP": "*", "RF": "&", "LT": "<", "GT": ">", "LP": "(", "RP": ")", "C": ",",
}  # fmt: skip
_BASIC: Final = {
    "a": "i8", "b": "bool", "c": "char", "d": "f64", "e": "str", "f": "f32", "h": "u8",
    "i": "isize", "j": "usize", "l": "i32", "m": "u32", "n": "i128", "o": "u128", "p": "_",
    "s": "i16", "t": "u16", "u": "()", "v": "...", "x": "i64", "y": "u64", "z": "!",
}  # fmt: skip
_POINTERS: Final = {"R": "&", "Q": "&mut ", "P": "*const ", "O": "*mut "}
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_HIDDEN_NAMESPACES = {"C": "closure", "S": "shim"}
_MAX_NAME = 4096
_MAX_TEXT = 4096
_MAX_STEPS = 4000
_MAX_DEPTH = 100
_MAX_NUMBER_DIGITS = 12
_MAX_CHARACTER = 0x10FFFF


def rust_name(mangled: str) -> str | None:
    """Return a function's path as Rust writes it, or None if this is no Rust name."""
    if not mangled.startswith(("_R", "_ZN")) or len(mangled) > _MAX_NAME:
        return None
    mangled = _SUFFIX.sub("", mangled)
    try:
        if mangled.startswith("_R"):
            return _Reader(mangled[2:]).symbol()
        if _LEGACY_END.search(mangled):
            return _legacy(mangled[3:])
    except (ValueError, IndexError):
        return None
    return None


def _legacy(text: str) -> str | None:
    parts = []
    at = 0
    while at < len(text) and text[at] != "E":
        digits = re.compile(r"\d{1,4}").match(text, at)
        if digits is None:
            return None
        at = digits.end() + int(digits[0])
        parts.append(text[digits.end() : at])
    if at != len(text) - 1:
        return None
    return "::".join(_unescaped(part) for part in parts[:-1]) or None


def _unescaped(part: str) -> str:
    part = part.removeprefix("_") if part.startswith("_$") else part
    return _ESCAPE.sub(_character, part).replace("..", "::")


def _character(found: re.Match[str]) -> str:
    code = found[1]
    if code in _ESCAPED:
        return _ESCAPED[code]
    number = int(code[1:], 16)
    return chr(number) if number <= _MAX_CHARACTER else found[0]


class _Reader:
    # Reads the v0 grammar by recursive descent. Steps are counted, because a reference back
    # reads a part again, which may hold references itself.

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._steps = 0
        self._depth = 0
        self._compound = {
            "A": self._array,
            "S": self._slice,
            "T": self._tuple,
            "F": self._function,
            "D": self._dynamic,
            "B": self._same_type,
        }

    def symbol(self) -> str:
        if self._text[0].isdigit():
            raise ValueError("another version")
        return self._path(value=True)

    def _next(self) -> str:
        character = self._text[self._at]
        self._at += 1
        return character

    def _skip(self, character: str) -> bool:
        found = self._text.startswith(character, self._at)
        self._at += found
        return found

    def _enter(self) -> None:
        self._steps += 1
        self._depth += 1
        if self._steps > _MAX_STEPS or self._depth > _MAX_DEPTH:
            raise ValueError("too long")

    def _leave(self, text: str) -> str:
        self._depth -= 1
        if len(text) > _MAX_TEXT:
            raise ValueError("too long")
        return text

    def _path(self, *, value: bool = False) -> str:
        self._enter()
        kind = self._next()
        if kind == "C":
            text = self._identifier()[0]
        elif kind in "MXY":
            if kind != "Y":
                self._disambiguator()
                self._path()  # where the impl stands
            text = self._type()
            text = f"<{text}>" if kind == "M" else f"<{text} as {self._path()}>"
        elif kind == "N":
            text = self._nested(value=value)
        elif kind == "I":
            text = self._path(value=value)
            arguments = ", ".join(filter(None, self._list(self._generic_argument)))
            if arguments:
                text += f"{'::' if value else ''}<{arguments}>"
        elif kind == "B":
            text = self._back(lambda: self._path(value=value))
        else:
            raise ValueError("no path")
        return self._leave(text)

    def _nested(self, *, value: bool) -> str:
        namespace = self._next()
        text = self._path(value=value)
        name, number = self._identifier()
        if namespace.isupper():
            kind = _HIDDEN_NAMESPACES.get(namespace, namespace)
            return f"{text}::{{{kind}{':' if name else ''}{name}#{number}}}"
        return f"{text}::{name}" if name else text

    def _generic_argument(self) -> str:
        if self._skip("L"):
            self._number()
            return ""
        return self._constant() if self._skip("K") else self._type()

    def _type(self) -> str:
        self._enter()
        kind = self._next()
        if kind in _BASIC:
            text = _BASIC[kind]
        elif kind in _POINTERS:
            if kind in "RQ" and self._skip("L"):
                self._number()
            text = _POINTERS[kind] + self._type()
        elif kind in self._compound:
            text = self._compound[kind]()
        else:
            self._at -= 1
            text = self._path()
        return self._leave(text)

    def _array(self) -> str:
        return f"[{self._type()}; {self._constant()}]"

    def _slice(self) -> str:
        return f"[{self._type()}]"

    def _tuple(self) -> str:
        parts = self._list(self._type)
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"

    def _same_type(self) -> str:
        return self._back(self._type)

    def _function(self) -> str:
        if self._skip("G"):
            self._number()
        text = "unsafe " if self._skip("U") else ""
        if self._skip("K"):
            abi = "C" if self._skip("C") else self._identifier()[0].replace("_", "-")
            text += f'extern "{abi}" '
        text += f"fn({', '.join(self._list(self._type))})"
        result = self._type()
        return text if result == "()" else f"{text} -> {result}"

    def _dynamic(self) -> str:
        if self._skip("G"):
            self._number()
        traits = self._list(self._dynamic_trait)
        if not self._skip("L"):
            raise ValueError("no lifetime")
        self._number()
        return f"dyn {' + '.join(traits)}"

    def _dynamic_trait(self) -> str:
        text = self._path()
        bounds = []
        while self._skip("p"):
            bounds.append(f"{self._identifier()[0]} = {self._type()}")
        if not bounds:
            return text
        if text.endswith(">"):
            return f"{text[:-1]}, {', '.join(bounds)}>"
        return f"{text}<{', '.join(bounds)}>"

    def _constant(self) -> str:
        self._enter()
        if self._skip("p"):
            return self._leave("_")
        if self._skip("B"):
            return self._leave(self._back(self._constant))
        kind = _BASIC.get(self._next())
        sign = "-" if self._skip("n") else ""
        end = self._text.index("_", self._at)
        digits = self._text[self._at : end]
        self._at = end + 1
        if kind is None or len(digits) > 32 or not re.fullmatch(r"[0-9a-f]*", digits):  # noqa: PLR2004 -- 128 bits
            raise ValueError("another constant")
        number = int(digits or "0", 16)
        if kind == "bool":
            return self._leave("true" if number else "false")
        if kind == "char":
            return self._leave(repr(chr(number)))
        return self._leave(f"{sign}{number}")

    def _list(self, read: Callable[[], str]) -> list[str]:
        parts = []
        while not self._skip("E"):
            self._steps += 1
            parts.append(read())
        return parts

    def _back(self, read: Callable[[], str]) -> str:
        start = self._at - 1
        target = self._number()
        if target >= start:
            raise ValueError("a reference forward")
        end, self._at = self._at, target
        text = read()
        self._at = end
        return text

    def _identifier(self) -> tuple[str, int]:
        number = self._disambiguator()
        foreign = self._skip("u")
        digits = re.compile(r"0|[1-9]\d{0,3}").match(self._text, self._at)
        if digits is None:
            raise ValueError("no identifier")
        self._at = digits.end()
        self._skip("_")
        end = self._at + int(digits[0])
        if end > len(self._text):
            raise ValueError("cut short")
        name = self._text[self._at : end]
        self._at = end
        return (_decoded(name) if foreign else name), number

    def _disambiguator(self) -> int:
        return self._number() + 1 if self._skip("s") else 0

    def _number(self) -> int:
        end = self._text.index("_", self._at)
        digits = self._text[self._at : end]
        if len(digits) > _MAX_NUMBER_DIGITS:
            raise ValueError("no number")
        self._at = end + 1
        number = 0
        for digit in digits:
            number = number * 62 + _DIGITS.index(digit)
        return number + 1 if digits else 0


def _decoded(name: str) -> str:
    before, _, after = name.rpartition("_")
    try:
        return f"{before}-{after}".encode("ascii").decode("punycode") if before else name
    except UnicodeError:
        return name
