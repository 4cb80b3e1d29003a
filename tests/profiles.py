"""Profiles as a receiver has them, read by the generated classes."""

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from otel_gpu.wire.frames import Frame
from tests.receiver import attributes_of


class Sent:
    """One sample with all that it refers to, as a receiver has it."""

    def __init__(self, dictionary, shown):
        def text(number):
            return dictionary.string_table[number]

        def attributes(numbers):
            rows = [dictionary.attribute_table[number] for number in numbers]
            return attributes_of([_Pair(text(row.key_strindex), row.value) for row in rows])

        self.values = list(zip(shown.timestamps_unix_nano, shown.values, strict=True))
        self.attributes = attributes(shown.attribute_indices)
        link = dictionary.link_table[shown.link_index]
        self.link = link.trace_id, link.span_id
        self.frames = []
        for number in dictionary.stack_table[shown.stack_index].location_indices:
            location = dictionary.location_table[number]
            name = file = ""
            line = 0
            for one in location.lines:
                function = dictionary.function_table[one.function_index]
                name, file = text(function.name_strindex), text(function.filename_strindex)
                line = one.line
            module = text(dictionary.mapping_table[location.mapping_index].filename_strindex)
            kind = attributes(location.attribute_indices).get("profile.frame.type", "cut")
            self.frames.append(Frame(kind, name, file, line, module, location.address))


class _Pair:
    def __init__(self, key, value):
        self.key, self.value = key, value


def read(data):
    """The profile of a request, and its samples."""
    request = ExportProfilesServiceRequest.FromString(data)
    (resource,) = request.resource_profiles
    (scope,) = resource.scope_profiles
    (profile,) = scope.profiles
    assert scope.scope.name == "otel_gpu.cpu"
    for table in ("mapping", "location", "function", "link", "attribute", "stack"):
        rows = getattr(request.dictionary, f"{table}_table")
        # As the protocol has it: the first is empty, and nothing is there twice.
        assert str(rows[0]) in ("", "value {\n}\n")
        assert len({row.SerializeToString(deterministic=True) for row in rows}) == len(rows)
    texts = request.dictionary.string_table
    assert texts[0] == ""
    assert len(set(texts)) == len(texts)
    kind = profile.sample_type
    assert [texts[kind.type_strindex], texts[kind.unit_strindex]] == ["cpu", "nanoseconds"]
    return profile, [Sent(request.dictionary, shown) for shown in profile.samples]
