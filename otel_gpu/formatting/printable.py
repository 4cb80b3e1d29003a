"""
Text of other programs, made safe for terminals and logs.

Names of processes, files and functions can hold escape sequences, line breaks and characters that
turn the direction of what follows. Printed as they are, they could hide a line, forge one, or
change a terminal's title. All that is printed or logged goes through here.
"""


def printable(text: str) -> str:
    """Escape what a terminal would obey, line breaks among it."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str, indent: str = "") -> str:
    """Escape as ``printable``, but keep line feeds; lines after the first begin with ``indent``."""
    return f"\n{indent}".join(map(printable, text.split("\n")))
