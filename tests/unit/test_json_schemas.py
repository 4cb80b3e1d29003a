"""The JSON schemas and the page of the documents are made from the types of reports."""

from typing import NamedTuple

import pytest
from jsonschema import Draft202012Validator

from otel_gpu.report.document import Document, Window
from otel_gpu.report.json_form import SCHEMA_VERSION, make_document
from tests.schemas import REPORT
from tools import json_page
from tools.json_schemas import DOCUMENTS, JsonDocument, schema_of

WINDOW = Window(1, 2)


class Wattage(NamedTuple):
    """
    Power that one device drew.

    Attributes:
        drawn_mw: The mean power, in milliwatts; None: the device
            does not report it.
    """

    device: int
    drawn_mw: float | None


class WiderDocument(Document):
    """
    A report with a made-up table.

    Attributes:
        balances: The made-up table.
    """

    balances: tuple[Wattage, ...]


WIDER = JsonDocument("wider.json", "otel-gpu wider --json", WiderDocument, SCHEMA_VERSION)


def objects_of(schema):
    return {"document": schema} | {
        name: kind for name, kind in schema["$defs"].items() if "properties" in kind
    }


def test_a_new_field_is_in_the_schema():
    """A field of a type and its docstring are all that its key needs."""
    schema = schema_of(WIDER)

    assert schema["properties"]["balances"] == {
        "type": "array",
        "items": {"$ref": "#/$defs/wattage"},
        "description": "The made-up table.",
    }
    assert schema["$defs"]["wattage"] == {
        "type": "object",
        "description": "Power that one device drew.",
        "additionalProperties": False,
        "required": ["device", "drawn_mw"],
        "properties": {
            "device": {"type": "integer", "minimum": 0},
            "drawn_mw": {
                "type": ["number", "null"],
                "minimum": 0,
                "description": "The mean power, in milliwatts; null: the device does not report it.",
            },
        },
    }


def test_a_new_field_is_on_the_page():
    """So does its row in the reference."""
    text = json_page.page("", (WIDER,))

    assert "| `balances` | list of [wattage](#wattage) | The made-up table. |" in text
    assert (
        "### `wattage`\n\nPower that one device drew.\n\n| key | type | meaning |\n| --- | --- | --- |\n"
        "| `device` | integer |  |\n| `drawn_mw` | number or null | The mean power, in milliwatts; "
        "null: the device does not report it. |"
    ) in text


@pytest.mark.parametrize("drawn_mw", [250.5, None, float("nan")])
def test_a_new_field_is_in_the_document_as_the_schema_has_it(drawn_mw):
    """The document has the key that the schema describes, and the schema without it refuses it."""
    document = Document("live", WINDOW)._replace(balances=(Wattage(0, drawn_mw),))
    written = make_document(document)

    Draft202012Validator(schema_of(WIDER)).validate(written)
    assert not REPORT.is_valid(written)
    written["balances"][0]["drawn_mw"] = -1
    assert not Draft202012Validator(schema_of(WIDER)).is_valid(written)


def test_an_attribute_that_is_no_field_is_refused():
    """A field that was renamed takes its description along."""

    class Renamed(NamedTuple):
        """
        Power.

        Attributes:
            watts: The power.
        """

        drawn_mw: int

    document = JsonDocument("renamed.json", "renamed", Renamed, 1)
    with pytest.raises(
        ValueError, match=r"Renamed: documents \['watts'\]; name fields of the type"
    ):
        schema_of(document)


def test_two_types_of_one_name_are_refused():
    """An object of a schema has one meaning."""
    left, right = (NamedTuple("Twin", [(name, int)]) for name in ("a", "b"))

    class Both(NamedTuple):
        first: left
        second: right

    with pytest.raises(ValueError, match="twin: two types have this name; rename Twin"):
        schema_of(JsonDocument("both.json", "both", Both, 1))


@pytest.mark.parametrize(
    ("kind", "error"),
    [(object, "no JSON form; use a NamedTuple"), (tuple[int, str], "a tuple of different types")],
)
def test_a_type_without_a_form_is_refused(kind, error):
    """Nothing becomes an object that allows anything."""

    class Vague(NamedTuple):
        value: kind

    with pytest.raises(ValueError, match=error):
        schema_of(JsonDocument("vague.json", "vague", Vague, 1))


def test_an_object_is_the_same_in_all_documents():
    """The page describes each once."""
    found = {}
    for document in DOCUMENTS:
        for name, kind in schema_of(document)["$defs"].items():
            assert found.setdefault(name, kind) == kind


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda one: one.file)
def test_null_and_absence_have_a_meaning(document):
    """What a reader of the JSON cannot guess is stated by the key, or by its object."""
    schema = schema_of(document)
    silent = []
    for name, kind in objects_of(schema).items():
        for key, value in kind["properties"].items():
            text = value.get("description", "")
            bare = str({part: value[part] for part in value if part != "description"})
            is_null = "'null'" in bare or "None" in bare
            if is_null and "null" not in text + kind.get("description", ""):
                silent.append(f"{name}.{key}: null")
            if key not in kind["required"] and not text + kind.get("description", ""):
                silent.append(f"{name}.{key}: absent")

    assert silent == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda one: one.file)
def test_objects_are_closed_and_described(document):
    """A key that the schema lacks is refused everywhere, and no object is only a name."""
    for name, kind in objects_of(schema_of(document)).items():
        assert kind["additionalProperties"] is False, name
        assert kind["description"], name


def test_a_process_that_is_none_has_no_pid():
    """Rows of all processes together have a null in place of the process."""
    bucket = schema_of(DOCUMENTS[0])["$defs"]["time_bucket"]

    assert "pid" in bucket["properties"]
    assert "pid" not in bucket["required"]
    assert bucket["properties"]["process"]["type"] == ["string", "null"]
