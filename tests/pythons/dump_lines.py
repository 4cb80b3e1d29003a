"""
Prints the lines of the code objects of a good part of the standard library, as JSON.

Of each: the line it begins with, its line table in hex, and for each range of instructions
its length in bytes and its line, 0 for none.
"""

import json
import sys
import sysconfig
import types
import warnings
from pathlib import Path


def code_objects(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from code_objects(constant)


def ranges(code):
    for start, end, line in code.co_lines():
        if end > start:
            yield end - start, line or 0


def main():
    warnings.simplefilter("ignore")
    library = Path(sysconfig.get_path("stdlib"))
    for file in sorted([*library.glob("*.py"), *library.glob("[a-j]*/*.py")]):
        if not file.is_file() or "test" in file.parent.name:
            continue
        for code in code_objects(compile(file.read_bytes(), str(file), "exec")):
            table = code.co_linetable.hex()
            row = code.co_firstlineno, table, list(ranges(code)), len(code.co_code)
            sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
