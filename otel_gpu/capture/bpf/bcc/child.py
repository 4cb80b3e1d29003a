"""
Asks BCC for constants of the kernel's headers; a program of its own.

It is run by the system's Python, since the distribution's BCC is a module of that one; so it
uses nothing that is not in every Python 3. And it is a process of its own, since LLVM stays in
a process that has used it.

Standard input has ``{"source": C, "expressions": [C]}``. The answer on standard output is
``{"values": [number or null], "log": text}``, or ``{"error": text, "log": text}``. Without
expressions, it only says whether there is a BCC.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
import sys
from typing import Any, BinaryIO

# Where BCC says that our text is.
_ERROR = re.compile(r"^/virtual/main\.c:(\d+):\d+: (?:fatal )?error: ", re.MULTILINE)
_ROUNDS = 4
_MOVE_TO_R0, _EXIT = 0xB7, 0x95
_TWO_INSTRUCTIONS = 16


def _ask(source: str, expressions: list[str], log: BinaryIO) -> list[int | None]:
    """Return a number for each expression; None for those that do not compile."""
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
    """Return the number that a program returns which does nothing else."""
    if len(code) == _TWO_INSTRUCTIONS and code[:2] == bytes((_MOVE_TO_R0, 0)) and code[8] == _EXIT:
        return int(struct.unpack_from("<i", code, 4)[0])
    return None


def _read(log: BinaryIO, start: int) -> str:
    # What C and C++ have written, and still keep.
    ctypes.CDLL(None).fflush(None)
    log.seek(start)
    return log.read().decode(errors="replace")


def main() -> None:
    """Answer the question on standard input."""
    question = json.load(sys.stdin)
    answer: dict[str, Any]
    answer_fd = os.dup(1)
    with os.fdopen(os.memfd_create("log"), "w+b") as log:
        # BCC prints to both, also where it succeeds.
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            answer = {"values": _ask(question["source"], question["expressions"], log)}
        except Exception as error:  # noqa: BLE001 -- the other process decides what it means
            answer = {"error": f"{type(error).__name__}: {error}"}
        answer["log"] = _read(log, 0)
    with os.fdopen(answer_fd, "w") as stream:
        json.dump(answer, stream)


if __name__ == "__main__":
    main()
