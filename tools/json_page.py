"""The page of the JSON documents, from their schemas."""

from collections.abc import Iterator
from typing import Any

from tools.json_schemas import DOCUMENTS, JsonDocument, Schema, schema_of

_HEAD = """\
# JSON documents

{notice}

The keys of what `--json` prints. Each document has a JSON schema, which ships with the package. `schema_version` grows
when a key is removed or changes its meaning; new keys and values can appear at any time.

Keys that end in `_unix_ns` are Unix time, others that end in `_ns` are durations, both in nanoseconds. Keys that end in
`_bytes` are bytes. Shares are parts of 1. A key marked *optional* is absent if it would be empty, or for the reason that its
meaning gives. [explain.md](explain.md) explains the report in words.
"""


def page(notice: str, documents: tuple[JsonDocument, ...] = tuple(DOCUMENTS)) -> str:
    """Return the page."""
    schemas = [schema_of(document) for document in documents]
    objects = {name: kind for schema in schemas for name, kind in schema["$defs"].items()}
    return "\n".join(
        [
            _HEAD.format(notice=notice),
            *(line for pair in zip(documents, schemas, strict=True) for line in _document(*pair)),
            "## Objects\n",
            *(line for name in sorted(objects) for line in _object(name, objects[name])),
            "## Values\n",
            "| name | meaning | values |",
            "| --- | --- | --- |",
            *(_values(name, objects[name]) for name in sorted(objects) if "enum" in objects[name]),
            "",
        ]
    )


def _document(document: JsonDocument, schema: Schema) -> Iterator[str]:
    yield f"## `{document.title}`\n"
    yield f"{schema['description']}\n"
    yield f"Schema: [{document.file}](../otel_gpu/report/{document.file}).\n"
    yield from _table(schema)


def _object(name: str, schema: Schema) -> Iterator[str]:
    if "properties" in schema:
        yield f"### `{name}`\n"
        yield f"{schema.get('description', '')}\n"
        yield from _table(schema)


def _table(schema: Schema) -> Iterator[str]:
    yield "| key | type | meaning |"
    yield "| --- | --- | --- |"
    for key, kind in schema["properties"].items():
        optional = "" if key in schema["required"] else ", optional"
        text = kind.get("description", "").replace("|", "\\|")
        yield f"| `{key}` | {_type(kind)}{optional} | {text} |"
    yield ""


def _values(name: str, schema: Schema) -> str:
    return f'| <a id="{name}"></a>`{name}` | {schema["description"]} | {_listed(schema["enum"])} |'


def _type(schema: Schema) -> str:
    match schema:
        case {"$ref": str(path)}:
            name = path.rpartition("/")[2]
            text = f"[{name}](#{name})"
        case {"anyOf": [inner, _]}:
            text = f"{_type(inner)} or null"
        case {"const": value}:
            text = _listed([value])
        case {"enum": values}:
            text = _listed(values)
        case {"type": [str(kind), "null"]}:
            text = f"{_type(schema | {'type': kind})} or null"
        case {"items": items}:
            text = f"list of {_type(items)}"
        case {"additionalProperties": dict(values)}:
            text = f"{_type(values)} by {_type(schema.get('propertyNames', {'type': 'string'}))}"
        case _:
            text = schema["type"]
    return text


def _listed(values: list[Any]) -> str:
    return ", ".join("null" if value is None else f"`{value}`" for value in values if value != "")
