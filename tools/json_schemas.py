"""
JSON schemas of the documents, from the types of reports.

Types and nulls come from the annotations of fields, and descriptions from docstrings: the text before ``Attributes:``
describes an object, and each attribute a key. ``report/json_types.py`` has what the documents write differently.
"""

import functools
import inspect
import json
import operator
import re
from collections.abc import Mapping, Sequence
from enum import Enum, EnumType
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from msgspec import Meta

from otel_gpu.formatting.field_types import NonEmpty
from otel_gpu.report import json_form
from otel_gpu.report.comparison import json_form as comparison
from otel_gpu.report.document import Document
from otel_gpu.report.json_types import (
    ABSENT_WHEN_EMPTY,
    ADDED,
    BY_ID,
    KEYS,
    LEFT_OUT,
    SPREAD,
    WRITTEN_AS,
)
from otel_gpu.report.stacks import document as stacks
from otel_gpu.report.stacks import thread_dump
from otel_gpu.report.stacks.json_types import DiffDocument, StacksDocument

Schema = dict[str, Any]

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_WIDTH: Final = 100
_ATTRIBUTE: Final = re.compile(r" {4}(\w+): (.*)")
_SCALARS: Final = {bool: "boolean", int: "integer", float: "number", str: "string", bytes: "string"}
# Of Meta, and of the schemas of numbers, texts, lists and objects.
_BOUNDS: Final = {"ge": "minimum", "le": "maximum", "pattern": "pattern"}
_LENGTHS: Final = {"string": "Length", "array": "Items", "object": "Properties"}


class JsonDocument(NamedTuple):
    """
    A document with a schema.

    Attributes:
        file: The file of the schema, in ``otel_gpu/report``.
        title: The command that prints the document.
        kind: The type of the document.
        version: Its ``schema_version``.
    """

    file: str
    title: str
    kind: type
    version: int


DOCUMENTS: Sequence[JsonDocument] = (
    JsonDocument("schema.json", "otel-gpu explain --json", Document, json_form.SCHEMA_VERSION),
    JsonDocument(
        "stacks_schema.json", "otel-gpu stacks --json", StacksDocument, stacks.SCHEMA_VERSION
    ),
    JsonDocument(
        "stacks_diff_schema.json",
        "otel-gpu stacks --diff A B --json",
        DiffDocument,
        stacks.SCHEMA_VERSION,
    ),
    JsonDocument(
        "threads_schema.json",
        "otel-gpu stacks --now --json",
        thread_dump.ThreadsDocument,
        thread_dump.SCHEMA_VERSION,
    ),
    JsonDocument(
        "comparison_schema.json",
        "otel-gpu compare --json",
        comparison.ComparisonDocument,
        comparison.SCHEMA_VERSION,
    ),
)


def schema_of(document: JsonDocument) -> Schema:
    """Return the schema of a document."""
    generator = _Generator(document.kind)
    root = generator.object_of(document.kind)
    version = {**root["properties"].pop("schema_version"), "const": document.version}
    root["properties"] = {"schema_version": version} | root["properties"]
    return {
        "$schema": _DIALECT,
        "title": document.title,
        **root,
        "$defs": dict(sorted(generator.defs.items())),
    }


def schema_text(document: JsonDocument) -> str:
    """Return the file of the schema of a document."""
    return _layout(schema_of(document), 0) + "\n"


def _layout(value: Any, indent: int) -> str:  # noqa: ANN401 -- any JSON
    line = json.dumps(value, ensure_ascii=False)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if indent + len(line) <= _WIDTH or not any(isinstance(part, dict) for part in parts):
        return line
    rows = (
        [_layout(item, indent + 2) for item in value]
        if isinstance(value, list)
        else [f"{json.dumps(key)}: {_layout(item, indent + 2)}" for key, item in value.items()]
    )
    margin = "\n" + " " * indent
    inside = ",".join(f"{margin}  {row}" for row in rows)
    return f"{line[0]}{inside}{margin}{line[-1]}"


class _Generator:
    def __init__(self, root: type) -> None:
        # Their keys hold whole chains and evidence.
        self._roots = (root, _added_to(root))
        self._kinds: dict[str, type] = {}
        self.defs: dict[str, Schema] = {}

    def object_of(self, kind: type) -> Schema:
        properties, required = self._keys(kind)
        if (added := _added_to(kind)) is not None:
            more, needed = self._keys(added)
            properties, required = properties | more, required | needed
        about, _ = docs_of(kind)
        return {
            "type": "object",
            **({"description": about} if about else {}),
            "additionalProperties": False,
            "required": [key for key in properties if key in required],
            "properties": properties,
        }

    def _keys(self, kind: type) -> tuple[dict[str, Schema], set[str]]:
        properties: dict[str, Schema] = {}
        required = set()
        texts = docs_of(kind)[1]
        for name, hint in get_type_hints(kind, include_extras=True).items():
            if get_origin(hint) is NotRequired:
                (hint,) = get_args(hint)  # noqa: PLW2901 -- whether a key is required is known of the type
            inner, is_nullable = _without_none(hint)
            key = KEYS.get(name, name)
            if name in LEFT_OUT.get(kind, ()):
                continue
            if inner in SPREAD:
                more, needed = self._keys(SPREAD[inner])
                if is_nullable:
                    more[key], needed = _or_null(more[key]), {key}
                properties |= more
                required |= needed
            elif hasattr(kind, "_fields") and name in ABSENT_WHEN_EMPTY:
                properties[key] = _not_empty(self._value(inner, name))
            else:
                properties[key] = self._value(hint, name, is_root=kind in self._roots)
                if key in getattr(kind, "__required_keys__", (key,)):
                    required.add(key)
            if name in texts:
                properties[key] = properties[key] | {"description": texts[name]}
        return properties, required

    def _value(self, hint: Any, name: str, *, is_root: bool = False) -> Schema:  # noqa: ANN401 -- any type
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            if values := arguments[1].extra_json_schema:
                return dict(values)
            schema = self._value(arguments[0], name, is_root=is_root)
            for meta in arguments[1:]:
                schema = _bounded(schema, arguments[0], meta)
            return schema
        if origin in (Union, UnionType):
            return self._union(hint, name, is_root=is_root)
        if origin is not None:
            return self._container(origin, arguments, name, is_root=is_root)
        return self._named(hint, name, is_root=is_root)

    def _named(self, kind: type, name: str, *, is_root: bool) -> Schema:
        if kind in BY_ID and not is_root:
            return self._value(NonEmpty, name)
        if kind in WRITTEN_AS:
            return self._value(WRITTEN_AS[kind], name)
        return _scalar(kind, name) if kind in _SCALARS else self._reference(kind)

    def _container(
        self, origin: type, arguments: Sequence[Any], name: str, *, is_root: bool
    ) -> Schema:
        if issubclass(origin, Mapping):
            keys = self._value(arguments[0], name)
            names = {"propertyNames": keys} if len(keys) > 1 or "$ref" in keys else {}
            values = self._value(arguments[1], name, is_root=is_root)
            return {"type": "object", **names, "additionalProperties": values}
        if len(set(arguments) - {...}) > 1:
            raise ValueError(f"{name}: a tuple of different types; use a type with named fields")
        sizes = {}
        if origin is tuple and arguments[-1] is not ...:
            sizes = {"minItems": len(arguments), "maxItems": len(arguments)}
        items = self._value(arguments[0], name, is_root=is_root)
        return {"type": "array", **sizes, "items": items}

    def _union(self, hint: Any, name: str, *, is_root: bool) -> Schema:  # noqa: ANN401 -- any type
        inner, is_nullable = _without_none(hint)
        if is_nullable:
            return _or_null(self._value(inner, name, is_root=is_root))
        # Enums: the same text can be in several.
        return {"enum": list(dict.fromkeys(str(one) for kind in get_args(hint) for one in kind))}

    def _reference(self, kind: type) -> Schema:
        if not (hasattr(kind, "_fields") or is_typeddict(kind) or isinstance(kind, EnumType)):
            raise ValueError(f"{kind}: no JSON form; use a NamedTuple, TypedDict or Enum")
        name = _name_of(kind)
        if self._kinds.setdefault(name, kind) is not kind:
            raise ValueError(f"{name}: two types have this name; rename {kind.__qualname__}")
        if name not in self.defs:
            self.defs[name] = {}  # It can contain itself.
            if issubclass(kind, Enum):
                self.defs[name] = {
                    "description": docs_of(kind)[0],
                    "enum": [str(one) for one in kind],
                }
            else:
                self.defs[name] = self.object_of(kind)
        return {"$ref": f"#/$defs/{name}"}


def _added_to(kind: type) -> Any:  # noqa: ANN401 -- a TypedDict is no type
    return next((ADDED[base] for base in kind.__mro__ if base in ADDED), None)


def docs_of(kind: type) -> tuple[str, Mapping[str, str]]:
    """Return the description of a type, and of its fields by name."""
    about, _, rest = inspect.cleandoc(kind.__doc__ or "").partition("\nAttributes:\n")
    # A tuple has no fields, so this ends.
    base = kind.__mro__[1]
    texts = dict(docs_of(base)[1]) if hasattr(base, "_fields") else {}
    name = ""
    for line in rest.splitlines():
        if found := _ATTRIBUTE.fullmatch(line):
            name = found[1]
            texts[name] = found[2]
        elif line.strip() and name:
            texts[name] += f" {line.strip()}"
    if stray := texts.keys() - get_type_hints(kind).keys():
        raise ValueError(f"{kind.__qualname__}: documents {sorted(stray)}; name fields of the type")
    return _plain(about), {name: _plain(text) for name, text in texts.items()}


def _plain(text: str) -> str:
    # A description is about JSON, and a docstring about Python.
    words = " ".join(text.split()).replace("``", "`")
    return re.sub(r"\bNone\b", "null", words)


def _name_of(kind: type) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", re.sub(r"(?<=.)Form$", "", kind.__name__)).lower()


def _without_none(hint: Any) -> tuple[Any, bool]:  # noqa: ANN401 -- any type
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
    if NoneType not in kinds:
        return hint, False
    inner = [kind for kind in kinds if kind is not NoneType]
    return functools.reduce(operator.or_, inner), True


def _or_null(schema: Schema) -> Schema:
    if "enum" in schema:
        return schema | {"enum": [*schema["enum"], None]}
    if "type" in schema:
        return schema | {"type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def _not_empty(schema: Schema) -> Schema:
    match schema.get("type"):
        case "boolean":
            return {"const": True}
        case "string" | "array" as kind if "pattern" not in schema:
            return schema | {f"min{_LENGTHS[kind]}": 1}
    return schema


def _scalar(kind: type, name: str) -> Schema:
    if kind is float and name.endswith("_ns"):
        # They are rounded.
        kind = int
    numbers = {"minimum": 0} if kind in (int, float) else {}
    return {"type": _SCALARS[kind], **numbers}


def _bounded(schema: Schema, kind: type, meta: Meta) -> Schema:
    made = {key: value for key, value in schema.items() if key != "minimum"}
    bounds = {_BOUNDS[name]: getattr(meta, name) for name in _BOUNDS}
    for end in ("min", "max"):
        length = getattr(meta, f"{end}_length")
        if kind is bytes and length is not None:
            bounds["pattern"] = f"^([0-9a-f]{{{2 * length}}})?$"
        elif length is not None:
            bounds[f"{end}{_LENGTHS[schema['type']]}"] = length
    made |= {key: value for key, value in bounds.items() if value is not None}
    if (meta.extra or {}).get("null"):
        made = _or_null(schema)
    return made
