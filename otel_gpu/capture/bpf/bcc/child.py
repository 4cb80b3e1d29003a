"""
A program that evaluates constants of the kernel's headers with BCC.

The system's Python runs it, because the distribution's BCC is a module for that one. So it uses only
what every Python 3 has. It is a process of its own, because LLVM stays in a process that used it.

Standard input: ``{"source": C, "expressions": [C]}``. Standard output:
``{"values": [number or null], "log": text}``, or ``{"error": text, "log": text}``. Without expressions,
it tests whether BCC is installed.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
import sys
from typing import BinaryIO

# The name that BCC gives our source in error messages.
_ERROR = re.compile(r"^/virtual/main\.c:(\d+):\d+: (?:fatal )?error: ", re.MULTILINE)
_ROUNDS = 4
_MOVE_TO_R0, _EXIT = 0xB7, 0x95
_TWO_INSTRUCTIONS = 16


def _ask(source: str, expressions: list[str], log: BinaryIO) -> list[int | None]:
    # A number for each expression; None for those that do not compile.
    from bcc import BPF  # type: ignore[import-not-found, import-untyped, unused-ignore]  # noqa: PLC0415 -- may be missing

    first_line = source.count("\n") + 2
    left = dict(enumerate(expressions))
    for _ in range(_ROUNDS if expressions else 0):
        numbers = list(left)
        functions = [f"int f{n}(void *ctx) {{ return {left[n]}; }}" for n in numbers]
        start = log.seek(0, os.SEEK_END)
        try:
            module = BPF(text="\n".join([source, *functions]), cflags=["-ferror-limit=0"])
        except Exception:  # BCC raises nothing more precise
            text = _read(log, start)
            wrong = {int(line) - first_line for line in _ERROR.findall(text)}
            if not wrong or not all(0 <= index < len(numbers) for index in wrong):
                raise
            for index in wrong:
                del left[numbers[index]]
        else:
            return [
                _constant(module.dump_func(f"f{n}")) if n in left else None
                for n in range(len(expressions))
            ]
    return [None] * len(expressions)


def _constant(code: bytes) -> int | None:
    # The value of a program that only returns a constant.
    if len(code) == _TWO_INSTRUCTIONS and code[:2] == bytes((_MOVE_TO_R0, 0)) and code[8] == _EXIT:
        return int(struct.unpack_from("<i", code, 4)[0])
    return None


def _read(log: BinaryIO, start: int) -> str:
    # Flush the buffers of C and C++.
    ctypes.CDLL(None).fflush(None)
    log.seek(start)
    return log.read().decode(errors="replace")


def main() -> None:
    """Read a question from standard input and write the answer to standard output."""
    question = json.load(sys.stdin)
    answer: dict[str, object]
    answer_fd = os.dup(1)
    with os.fdopen(os.memfd_create("log"), "w+b") as log:
        # BCC prints to both, even on success.
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            answer = {"values": _ask(question["source"], question["expressions"], log)}
        except Exception as error:  # noqa: BLE001 -- the parent decides what it means
            answer = {"error": f"{type(error).__name__}: {error}"}
        answer["log"] = _read(log, 0)
    with os.fdopen(answer_fd, "w") as stream:
        json.dump(answer, stream)


if __name__ == "__main__":
    main()
