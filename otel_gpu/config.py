"""Reads and checks the configuration: a file, environment variables, and flags; see ``options.py``."""

import difflib
import logging
import math
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from otel_gpu.errors import ConfigError
from otel_gpu.files import safe_files
from otel_gpu.options import (
    ENVIRONMENT_PREFIX,
    OPTIONS,
    SECTIONS,
    BucketLayout,
    Config,
    Option,
    ValueKind,
)

__all__ = ["FILE_VARIABLE", "OPTIONS", "Config", "load", "nearest"]

FILE_VARIABLE = "OTEL_GPU_CONFIG"
_MAX_FILE_BYTES = 1 << 20
# Switches of the test suite, which the tested programs inherit, and of `mcp`, which reads its token
# itself: a secret is not a setting that is printed.
_FOREIGN_PREFIXES = ("OTEL_GPU_TEST_", "OTEL_GPU_MCP_")

# Parsers of variables by the kind of option; other kinds are text.
_PARSERS: Mapping[ValueKind, Callable[[str], object]] = {
    ValueKind.INTEGER: int,
    ValueKind.NUMBER: float,
    ValueKind.NUMBERS: lambda text: [float(part) for part in text.split(",")],
    ValueKind.BOOLEAN: lambda text: {"true": True, "false": False}[text.strip().lower()],
}

_logger = logging.getLogger(__name__)

# With YAML's references, a short file can have a value of any size.
_brief = reprlib.Repr()
_brief.maxlevel = 2


def load(path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, object]) -> Config:
    """
    Read a YAML file, variables, and flags by key (``spans.mode``); later ones override earlier ones.

    The file is ``path``, or else that of ``OTEL_GPU_CONFIG``. An empty variable counts as unset, as
    in OpenTelemetry. An unknown variable is only logged, as another program can use it. Raises
    ``ConfigError``.
    """
    values: dict[str, object] = {}
    if path is None and environ.get(FILE_VARIABLE):
        path = Path(environ[FILE_VARIABLE])
    if path is not None:
        values.update(_read_file(path))
    values.update(_read_environment(environ))
    for key, value in overrides.items():
        if value is not None:
            option = OPTIONS[key]
            values[key] = _convert(option, value, option.flag or key)
    sections: dict[str, dict[str, object]] = {section: {} for section in SECTIONS}
    for key, value in values.items():
        sections[OPTIONS[key].section][OPTIONS[key].name] = value
    config = Config(**{name: SECTIONS[name](**fields) for name, fields in sections.items()})
    _check_together(config)
    return config


def _read_file(path: Path) -> Iterator[tuple[str, object]]:
    # A third of all imports at a start, and most starts have no file.
    import yaml  # noqa: PLC0415

    try:
        document = yaml.safe_load(safe_files.read_regular(path, _MAX_FILE_BYTES).decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: is nested too deeply") from error
    # A tag names a constructor, which can raise any of these: `!!int a`.
    except (yaml.YAMLError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: is not valid YAML: {' '.join(str(error).split())}") from error
    for section, fields in _mapping(path, None, document).items():
        if section not in SECTIONS:
            hint = nearest(section, SECTIONS)
            raise ConfigError(f"{path}: unknown section {str(section)!r}", hint=hint)
        names = [option.name for option in OPTIONS.values() if option.section == section]
        for name, value in _mapping(path, section, fields).items():
            if name not in names:
                hint = nearest(name, names)
                raise ConfigError(f"{path}: unknown key {section}.{name}", hint=hint)
            option = OPTIONS[f"{section}.{name}"]
            yield option.key, _convert(option, value, f"{path}: {option.key}")


def _mapping(path: Path, section: str | None, value: object) -> Mapping[Any, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        where = f"{path}: {section}" if section else str(path)
        raise ConfigError(f"{where}: must be a mapping of keys to values")
    return value


def _read_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, object]]:
    known: dict[str, Option | None] = {option.variable: option for option in OPTIONS.values()}
    known[FILE_VARIABLE] = None
    for variable, text in sorted(environ.items()):
        if variable in known:
            if text and (option := known[variable]):
                yield option.key, _parse(option, text, variable)
        elif variable.startswith(ENVIRONMENT_PREFIX) and not variable.startswith(_FOREIGN_PREFIXES):
            hint = nearest(variable, known)
            _logger.warning("%s is not known and has no effect%s", variable, hint and f"; {hint}")


def _parse(option: Option, text: str, where: str) -> object:
    try:
        value = _PARSERS.get(option.kind, str)(text)
    except (KeyError, ValueError):
        raise ConfigError(f"{where}: must be {_expected(option)}, not {text!r}") from None
    return _convert(option, value, where)


def _convert(option: Option, value: Any, where: str) -> object:  # noqa: ANN401 -- any YAML in
    # Check one value, and convert it to the option's type.
    if value is None and option.optional:
        return None
    match option.kind:
        case ValueKind.TEXT:
            good = isinstance(value, str) and bool(value)
        case ValueKind.BOOLEAN:
            good = isinstance(value, bool)
        case ValueKind.NUMBERS:
            good = isinstance(value, list | tuple)
            good = good and all(_is_number(item, float, option) for item in value)
        case _:
            good = _is_number(value, type(option.default), option)
    if not good or (option.choices and value not in option.choices):
        hint = nearest(value, option.choices) if isinstance(value, str) else ""
        raise ConfigError(
            f"{where}: must be {_expected(option)}, not {_brief.repr(value)}", hint=hint
        )
    if option.choices:
        value = type(option.default)(value)
    elif option.kind == ValueKind.NUMBER:
        value = float(value)
    elif option.kind == ValueKind.NUMBERS:
        value = tuple(map(float, value))
    if option.check and (problem := option.check(value)):
        raise ConfigError(f"{where}: {problem} ({_brief.repr(value)})")
    return value


def _is_number(value: object, kind: type, option: Option) -> bool:
    # YAML's `yes` is a bool, and a bool is an int in Python.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if isinstance(value, float) and not (kind is float and math.isfinite(value)):
        return False
    return option.bounds is None or option.bounds[0] <= value <= option.bounds[1]


def _expected(option: Option) -> str:
    if option.choices:
        return "one of " + ", ".join(option.choices)
    articles = {ValueKind.INTEGER: "an ", ValueKind.NUMBER: "a ", ValueKind.NUMBERS: "a "}
    article = articles.get(option.kind, "")
    text = article + option.kind
    if option.bounds is not None:
        text += " from {:.15g} to {:.15g}".format(*option.bounds)
    return text


def _check_together(config: Config) -> None:
    histograms = config.histograms
    for name in ("duration_bounds_s", "size_bounds_bytes"):
        if getattr(histograms, name) and histograms.layout != BucketLayout.EXPLICIT:
            hint = "set histograms.layout to explicit, or leave the bounds out"
            layout = f"histograms.layout is {histograms.layout}"
            raise ConfigError(f"histograms.{name} is set, but {layout}", hint=hint)
    if config.export.batch_bytes > config.export.queue_bytes:
        batch, queue = config.export.batch_bytes, config.export.queue_bytes
        sizes = f"export.batch_bytes ({batch}) is larger than export.queue_bytes ({queue})"
        raise ConfigError(sizes, hint="a batch has to fit into the queue")


def nearest(name: object, known: Iterable[str]) -> str:
    """Return a hint with the most similar known name, or nothing if none is similar."""
    found = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.6)
    return f"did you mean {found[0]}?" if found else ""
