"""SQL expressions that several views use."""

OWNER = "p.service_name AS service, p.pid AS pid"
CHOICES = (
    "(SELECT group_concat(name, ', ') FROM (SELECT name FROM choices WHERE e.choices & choice "
    "ORDER BY choice))"
)
PLACE = "coalesce(u.place, '') AS place, coalesce(u.id, '') AS stack_id"
PROGRAM = "LEFT JOIN stacks u ON u.stack = e.program_stack"


def utc(unix_ns: str) -> str:
    """Return the SQL that formats a Unix time as ISO 8601, with nanoseconds."""
    return (
        f"strftime('%Y-%m-%dT%H:%M:%S', {unix_ns} / 1000000000, 'unixepoch') || '.' || "
        f"substr('00000000' || ({unix_ns} % 1000000000), -9) || 'Z'"
    )


def ms(ns: str) -> str:
    """Return the SQL that converts nanoseconds to milliseconds."""
    return f"round({ns} / 1e6, 6)"
