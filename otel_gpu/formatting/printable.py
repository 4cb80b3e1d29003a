"""
Untrusted text, escaped for terminals and logs.

Names of processes, files and functions can hold escape sequences, line breaks and characters that
reverse the direction of text. Unescaped, they could hide a line, forge one, or change a
terminal's title. All output and log lines are escaped here.
"""


def printable(text: str) -> str:
    """Escape all characters that are not printable, line breaks included."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str, indent: str = "") -> str:
    """Escape each line as ``printable`` does; lines after the first begin with ``indent``."""
    return f"\n{indent}".join(map(printable, text.split("\n")))
