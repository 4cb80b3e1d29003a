"""The name of a process: ``service.name`` from its own settings, its script or its executable."""

import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

UNKNOWN_SERVICE = "unknown_service"

_PYTHON = re.compile(r"^(python|pypy)[0-9.]*[tdw]*$")
# Options of CPython's command line that take a value, attached or as the next argument.
_VALUE_OPTIONS = frozenset("WX")
_LONG_VALUE_OPTIONS = frozenset({"--check-hash-based-pycs"})
_BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")


def name_service(
    *,
    context: Mapping[str, object],
    environment: Mapping[str, str],
    exe: str | None,
    command_args: Sequence[str],
    comm: str,
) -> str:
    """
    Return the name of the service that a process is part of.

    The first of these that is set: the process's own OpenTelemetry context, ``OTEL_SERVICE_NAME``
    and then ``OTEL_RESOURCE_ATTRIBUTES`` in its environment, the Python script or module that it
    runs, its executable's name, its comm.
    """
    published = context.get("service.name")
    if isinstance(published, str) and published.strip():
        return published.strip()
    configured = environment.get("OTEL_SERVICE_NAME", "").strip()
    if configured:
        return configured
    listed = parse_resource_attributes(environment.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    if listed.get("service.name"):
        return listed["service.name"]
    program = _last_parts(exe or next(iter(command_args), ""))[1].strip()
    if is_python(program):
        return find_python_program(command_args) or program
    return program or comm or UNKNOWN_SERVICE


def is_python(name: str) -> bool:
    """Return whether an executable of this name is an interpreter of Python."""
    return _PYTHON.match(name) is not None


def find_python_program(command_args: Sequence[str]) -> str | None:
    """
    Return the script or module that a Python command line runs.

    Follows CPython's own option parsing. None: ``-c``, standard input, an interactive interpreter,
    or a process title in place of the arguments.
    """
    rest = iter(command_args[1:])
    for argument in rest:
        if argument == "--":
            return _script_name(next(rest, ""))
        if argument in _LONG_VALUE_OPTIONS:
            next(rest, None)
        elif argument.startswith("--"):
            continue
        elif argument == "-" or not argument.startswith("-"):
            return _script_name(argument)
        else:
            option, value = _first_value_option(argument)
            if option == "m":
                return value or next(rest, "") or None
            if option == "c":
                return None
            if option and not value:
                next(rest, None)
    return None


def parse_resource_attributes(text: str) -> dict[str, str]:
    """
    Parse ``OTEL_RESOURCE_ATTRIBUTES``: ``key=value,key=value``, percent-encoded.

    As the specification requires, one error discards all of it.
    """
    attributes: dict[str, str] = {}
    for item in text.split(","):
        if not item.strip():
            continue
        key, equals, value = item.partition("=")
        if not equals or not key.strip() or _BAD_ESCAPE.search(item):
            return {}
        try:
            decoded = unquote(value.strip(), errors="strict")
            attributes[unquote(key.strip(), errors="strict")] = decoded
        except UnicodeDecodeError:
            return {}
    return attributes


def _script_name(path: str) -> str | None:
    if path in ("", "-"):
        return None
    folder, script = _last_parts(path)
    # A package that is run by its path has the package's name.
    if script == "__main__.py" and folder:
        return folder
    return script or None


def _last_parts(path: str) -> tuple[str, str]:
    # Not pathlib: it interns each part, and CPython's table of interned strings, which never
    # shrinks, would grow by a megabyte on a host whose programs come and go.
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return parts[-2] if len(parts) > 1 else "", parts[-1] if parts else ""


def _first_value_option(argument: str) -> tuple[str, str]:
    # Single letters can be joined ("-uXdev"): the first that takes a value ends them.
    for position, letter in enumerate(argument[1:], start=1):
        if letter in "cm" or letter in _VALUE_OPTIONS:
            return letter, argument[position + 1 :]
    return "", ""
