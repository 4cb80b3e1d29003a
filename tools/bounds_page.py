"""The page of bounds, read from the compiled BPF object and from the code that creates caches."""

import ast
import dataclasses
import importlib
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from otel_gpu.capture.bpf.objects import BpfObject
from otel_gpu.capture.bpf.programs import size_maps
from otel_gpu.config import Config
from otel_gpu.explain.settings import Settings
from tools.generate_wire import Types

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = ROOT / "otel_gpu"
OBJECT: Final = PACKAGE / "_bpf" / f"otel_gpu.{platform.machine()}.bpf.o"

_ABOUT: Final = """\
A host runs programs for days, and can run a million short ones while the agent watches. So each map and each cache has a bound.
What does not fit is counted as a loss, or the entry that was used least recently is evicted. What belongs to a process is freed after its
end, at the same record in a capture and in its replay. `tests/unit/test_many_processes.py`,
`tests/unit/explain/test_short_programs.py` and `tests/soak/test_process_storm.py` test that.
"""

_MAPS: Final = """\
## BPF maps

From the compiled object, with the default configuration and a kernel since 6.1. *Bytes* are those of the keys and values of a full map.
A map that *grows* takes memory for the entries that it has, and no more. A *percpu* map has its entries once for each CPU; here they
are counted once. An *lru* map evicts. What does not fit into any other map is counted.

| map | type | key | entries | bytes | set by |
| --- | --- | --- | ---: | ---: | --- |
"""

_CACHES: Final = """\
## Caches of the agent

*At most* is the bound of a `Recent`, `GroupedRecent` or `Fifo` or of a function that remembers results, in entries; for other caches, the limits that their class
uses. Caches with a name are measured, and all of them together hold {cache_bytes} (`capture.cache_bytes`). Beyond that, the largest one that
*shrinks* evicts what is too much, and at most a quarter of its entries at a time, until the sum fits (`limits/caches.py`).

| module | cache | name | at most | |
| --- | --- | --- | ---: | --- |
"""

# enum bpf_map_type of <linux/bpf.h>
_MAP_TYPES: Final = {
    1: "hash",
    2: "array",
    5: "percpu hash",
    6: "percpu array",
    9: "lru hash",
    27: "ring buffer",
}
_MAPPINGS: Final = ("Recent", "Fifo", "GroupedRecent")
_SIZES: Final = ("ring_buffer_bytes", "max_threads", "max_processes", "max_series", "max_times")


def page(notice: str) -> str:
    """Return the page."""
    cache_bytes = f"{Config().capture.cache_bytes >> 20} MiB"
    maps, caches = "\n".join(_map_rows()), "\n".join(_cache_rows())
    about = f"# What is bounded\n\n{notice}\n\n{_ABOUT}"
    return f"{about}\n{_MAPS}{maps}\n\n{_CACHES.format(cache_bytes=cache_bytes)}{caches}\n"


class _MapSizes:
    # Takes the place of an object whose maps are sized.
    def __init__(self, config: Config) -> None:
        self.entries: dict[str, int] = {}
        self.grown: set[str] = set()
        size_maps(cast("BpfObject", self), config, can_grow=True)

    def set_max_entries(self, name: str, entries: int) -> None:
        self.entries[name] = entries

    def let_grow(self, name: str) -> None:
        self.grown.add(name)


def _map_rows() -> Iterator[str]:
    # It is in a folder that not every user's PATH has.
    bpftool = shutil.which("bpftool", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or "bpftool"
    command = [bpftool, "-j", "btf", "dump", "file", str(OBJECT)]
    entries = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["types"]
    types, by_id = Types(entries), {entry["id"]: entry for entry in entries}
    sizes, options = _MapSizes(Config()), _options()
    (section,) = (e for e in entries if e["kind"] == "DATASEC" and e["name"] == ".maps")
    variables = (by_id[variable["type_id"]] for variable in section["vars"])
    for variable in sorted(variables, key=lambda variable: str(variable["name"])):
        name = variable["name"]
        # Each field is a pointer, to a type or to an array that is as long as a number.
        fields = {
            field["name"]: by_id[by_id[field["type_id"]]["type_id"]]
            for field in types.strip(variable["type_id"])["members"]
        }
        kind = _MAP_TYPES[fields["type"]["nr_elems"]]
        most = sizes.entries.get(name, fields["max_entries"]["nr_elems"])
        entry = [fields[field] for field in ("key", "value") if field in fields]
        # The entries of a ring are bytes.
        size_bytes = most * (sum(types.size(one["id"]) for one in entry) or 1)
        cells = (
            f"`{name}`",
            f"{kind}, grows" if name in sizes.grown else kind,
            f"`{entry[0]['name']}`" if entry else "",
            f"{most:,}",
            f"{size_bytes:,}",
            f"`capture.{options[name]}`" if name in options else "",
        )
        yield f"| {' | '.join(cells)} |"


def _options() -> dict[str, str]:
    """Return the option that sizes a map, by its name: the map is another size if it is doubled."""
    config = Config()
    usual = _MapSizes(config).entries
    found: dict[str, str] = {}
    for option in _SIZES:
        twice = {option: 2 * getattr(config.capture, option)}
        capture = dataclasses.replace(config.capture, **twice)
        sizes = _MapSizes(dataclasses.replace(config, capture=capture)).entries
        found |= {name: option for name in sizes if sizes[name] != usual[name]}
    return found


class _Cache(NamedTuple):
    """``name`` is that of its registration; empty: it is not registered."""

    what: str
    most: int | str
    name: str
    shrinks: bool


def _cache_rows() -> Iterator[str]:
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        is_one = any(word in text for word in ("Recent(", "Fifo(", "CACHES.", "@remembered"))
        if is_one and path.parent.name != "limits":
            module = path.relative_to(PACKAGE)
            for cache in _Module(module, ast.parse(text)).caches():
                most = f"{cache.most:,}" if isinstance(cache.most, int) else cache.most
                name = cache.name and f"`{cache.name}`"
                shrinks = "shrinks" if cache.shrinks else ""
                yield f"| `{module}` | `{cache.what}` | {name} | {most} | {shrinks} |"


class _Module:
    """
    The caches that a module makes.

    Those are what ``CACHES`` registers, each ``Recent`` or ``Fifo``, and functions that are ``remembered``.
    """

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self._tree = tree
        name = ".".join(("otel_gpu", *path.with_suffix("").parts))
        self._names = vars(importlib.import_module(name))

    def caches(self) -> Iterator[_Cache]:
        """Yield them, by class and function."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.ClassDef):
                yield from self._of_class(node)
            elif isinstance(node, ast.FunctionDef):
                for call in node.decorator_list:
                    if isinstance(call, ast.Call) and _called(call) == "remembered":
                        name, most, *_ = [*call.args, *(word.value for word in call.keywords)]
                        yield _Cache(node.name, self._value(most), str(self._value(name)), True)  # noqa: FBT003

    def _of_class(self, node: ast.ClassDef) -> Iterator[_Cache]:
        bounds: dict[str, int | str] = {}
        made: list[str] = []
        registered: dict[str, tuple[str, bool]] = {}
        for part in node.body:
            defaults = self._defaults(part) if isinstance(part, ast.FunctionDef) else {}
            for one in ast.walk(part):
                if isinstance(one, ast.AnnAssign | ast.Assign) and _called(one.value) in _MAPPINGS:
                    call = cast("ast.Call", one.value)
                    made.append(ast.unparse(call.args[0]))
                    target = one.target if isinstance(one, ast.AnnAssign) else one.targets[-1]
                    attribute = ast.unparse(target).removeprefix("self.")
                    bounds[attribute] = self._value(call.args[0], defaults)
                    for word in call.keywords:
                        if word.arg == "cache":
                            registered[attribute] = str(self._value(word.value)), True
                elif isinstance(one, ast.Call):
                    registered |= self._registered(one)
        for attribute in dict.fromkeys([*bounds, *registered]):
            what = f"{node.name}.{attribute}" if attribute else node.name
            bound = bounds.get(attribute) or self._limits(node, made)
            yield _Cache(what, bound, *registered.get(attribute, ("", False)))

    def _registered(self, call: ast.Call) -> dict[str, tuple[str, bool]]:
        """Return the name of what a call registers and whether it shrinks, by its attribute."""
        if not ast.unparse(call.func).startswith("CACHES.register"):
            return {}
        name = str(self._value(call.args[0]))
        attribute = str(self._value(call.args[2])) if call.args[2:] else ""
        shrinks = {"release"} & {word.arg for word in call.keywords}
        return {attribute: (name, bool(shrinks))}

    def _limits(self, node: ast.ClassDef, others: Collection[str]) -> str:
        """Return the limits that a class uses but for other caches: constants, settings and arguments."""
        found: dict[str, int | None] = {}
        for one in ast.walk(node):
            if isinstance(one, ast.Name) and re.fullmatch(r"_?MAX_\w+(?<!_S)(?<!_NS)", one.id):
                found[one.id] = self._names[one.id]
            elif isinstance(one, ast.Attribute) and ast.unparse(one.value).endswith("settings"):
                if one.attr.startswith("max_"):
                    found[one.attr] = getattr(Settings(), one.attr)
            elif isinstance(one, ast.FunctionDef) and one.name == "__init__":
                defaults = self._defaults(one)
                names = (argument.arg for argument in (*one.args.args, *one.args.kwonlyargs))
                found |= {
                    name: defaults.get(name)
                    for name in names
                    if name.startswith(("max_", "limit", "most"))
                }
            elif isinstance(one, ast.AnnAssign) and ast.unparse(one.target).startswith("limit"):
                found[ast.unparse(one.target)] = None
        return ", ".join(
            f"`{name}`" if most is None else f"`{name}` {most:,}"
            for name, most in found.items()
            if name not in others
        )

    def _defaults(self, function: ast.FunctionDef) -> dict[str, Any]:
        parameters = zip(function.args.args[::-1], function.args.defaults[::-1], strict=False)
        return {parameter.arg: self._value(default) for parameter, default in parameters}

    def _value(self, node: ast.expr, more: Mapping[str, Any] | None = None) -> int | str:
        """Return the value of an expression of constants, or the name of a parameter."""
        try:
            names = {"settings": Settings(), **self._names, **(more or {})}
            value: int | str = eval(ast.unparse(node), names)  # noqa: S307
        except NameError:
            return f"`{ast.unparse(node)}`"
        return value


def _called(node: ast.expr | None) -> str:
    return ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
