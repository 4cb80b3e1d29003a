"""The SQL that views have in common."""


def utc(unix_ns: str) -> str:
    """Return the SQL that writes a moment as ISO 8601, to the nanosecond."""
    return (
        f"strftime('%Y-%m-%dT%H:%M:%S', {unix_ns} / 1000000000, 'unixepoch') || '.' || "
        f"substr('00000000' || ({unix_ns} % 1000000000), -9) || 'Z'"
    )


def ms(ns: str) -> str:
    """Return the SQL that makes milliseconds of nanoseconds."""
    return f"round({ns} / 1e6, 6)"
