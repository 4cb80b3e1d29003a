"""
CPU samples as OTLP profiles: requests of the signal that is in development, ``v1development``.

A request has one dictionary, to which its profiles refer by index: texts, functions, locations,
stacks, links to spans, attributes. Index 0 is empty in each of its tables. Here every profile is
its own request, so that a refused one takes no other with it.

The layout can still change between versions of ``opentelemetry-proto``, under the same name. Only
this module depends on it, and it is imported only if profiles are exported.
"""

from typing import NamedTuple, TypeVar

from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as service
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.profiles.v1development import profiles_pb2 as otlp

from otel_gpu.enrich.identity.identities import CallStack
from otel_gpu.export import semconv
from otel_gpu.export.otlp.attribute_encoder import field
from otel_gpu.export.otlp.queue import QueuedItem
from otel_gpu.export.otlp.signals import Signal
from otel_gpu.export.otlp.span_encoder import encode_request, header_size
from otel_gpu.export.spans.finished import Origin
from otel_gpu.wire.frames import Frame, FrameType

_SAMPLE_TYPE = ("cpu", "nanoseconds")
_PROFILE_TAG, _DICTIONARY_TAG = b"\x12", b"\x12"
# Upper bounds in bytes: an item of a table, without its text or list; a number in a list; a
# sample's value and its time.
_ITEM_BYTES = 64
_NUMBER_BYTES = 5
_VALUE_BYTES = 20

_Key = TypeVar("_Key")


class EncodedProfile(NamedTuple):
    """A profile, encoded as a request."""

    origin: Origin
    data: bytes


class ProcessSample(NamedTuple):
    """
    A sample of one process.

    ``weight_ns`` is the CPU time that it represents, and ``functions`` are the kernel's, innermost
    first. The ids are those of the span in which it was taken; empty: none is known.
    """

    unix_ns: int
    weight_ns: int
    tid: int
    comm: str
    functions: tuple[str, ...]
    stack: CallStack | None
    trace_id: bytes = b""
    span_id: bytes = b""


class ProfileEncoder:
    """
    Encodes one profile; equal stacks of one thread in one span are one sample with many values.

    ``size_bytes`` is an upper bound of the size that ``encode`` returns.
    """

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self.size_bytes = header_size(origin) + 4 * _ITEM_BYTES
        self._dictionary = otlp.ProfilesDictionary(
            mapping_table=[otlp.Mapping()],
            location_table=[otlp.Location()],
            function_table=[otlp.Function()],
            link_table=[otlp.Link()],
            string_table=[""],
            attribute_table=[otlp.KeyValueAndUnit()],
            stack_table=[otlp.Stack()],
        )
        self._texts: dict[str, int] = {}
        self._attributes: dict[tuple[str, str | int | bool], int] = {}
        self._links: dict[tuple[bytes, bytes], int] = {}
        self._mappings: dict[str, int] = {}
        self._functions: dict[tuple[str, str], int] = {}
        self._locations: dict[Frame, int] = {}
        self._stacks: dict[tuple[int, tuple[str, ...]], int] = {}
        self._samples: dict[tuple[int, tuple[int, ...], int], list[tuple[int, int]]] = {}
        self._type = [self._text(text) for text in _SAMPLE_TYPE]

    def add(self, taken: ProcessSample) -> None:
        """Add a sample."""
        key = self._stack(taken), self._attributes_of(taken), self._link(taken)
        values = self._samples.get(key)
        if values is None:
            values = self._samples[key] = []
            self.size_bytes += _ITEM_BYTES
        values.append((taken.unix_ns, taken.weight_ns))
        self.size_bytes += _VALUE_BYTES

    def encode(self, profile_id: bytes) -> EncodedProfile:
        """Return the profile; ``profile_id`` has 16 bytes and is unique."""
        times = [unix_ns for values in self._samples.values() for unix_ns, _ in values]
        profile = otlp.Profile(
            sample_type=otlp.ValueType(type_strindex=self._type[0], unit_strindex=self._type[1]),
            time_unix_nano=min(times),
            # All samples are before the end.
            duration_nano=max(times) - min(times) + 1,
            profile_id=profile_id,
        )
        for (stack, attributes, link), values in self._samples.items():
            profile.samples.add(
                stack_index=stack,
                attribute_indices=attributes,
                link_index=link,
                timestamps_unix_nano=[unix_ns for unix_ns, _ in values],
                values=[weight_ns for _, weight_ns in values],
            )
        data = field(_PROFILE_TAG, profile.SerializeToString())
        # The messages around a profile have the same tags as those around a span.
        around = encode_request([QueuedItem(self._origin, len(data), data)])
        dictionary = field(_DICTIONARY_TAG, self._dictionary.SerializeToString())
        return EncodedProfile(self._origin, around + dictionary)

    def _attributes_of(self, taken: ProcessSample) -> tuple[int, ...]:
        is_cut = taken.stack is not None and not taken.stack.complete
        return (
            self._attribute(semconv.OTEL_GPU_THREAD_TID, taken.tid),
            self._attribute(semconv.THREAD_NAME, taken.comm),
            *([self._attribute(semconv.OTEL_GPU_STACK_COMPLETE, False)] if is_cut else ()),  # noqa: FBT003 -- its value
        )

    def _stack(self, taken: ProcessSample) -> int:
        stack = taken.stack
        key = stack.id if stack else 0, taken.functions
        if key == (0, ()):
            return 0
        number = self._stacks.get(key)
        if number is None:
            frames = (
                *(Frame(FrameType.KERNEL, name) for name in key[1]),
                *(stack.frames if stack else ()),
            )
            locations = [self._location(frame) for frame in frames]
            number = self._new(self._stacks, key, len(locations) * _NUMBER_BYTES)
            self._dictionary.stack_table.add(location_indices=locations)
        return number

    def _location(self, frame: Frame) -> int:
        number = self._locations.get(frame)
        if number is None:
            location = otlp.Location(
                mapping_index=self._mapping(frame.module), address=frame.address
            )
            if function := self._function(frame.function, frame.file):
                location.lines.add(function_index=function, line=frame.line)
            if frame.kind != FrameType.CUT:
                kind = self._attribute(semconv.PROFILE_FRAME_TYPE, frame.kind)
                location.attribute_indices.append(kind)
            number = self._new(self._locations, frame)
            self._dictionary.location_table.append(location)
        return number

    def _mapping(self, module: str) -> int:
        number = 0 if not module else self._mappings.get(module)
        if number is None:
            name = self._text(module)
            number = self._new(self._mappings, module)
            self._dictionary.mapping_table.add(filename_strindex=name)
        return number

    def _function(self, name: str, file: str) -> int:
        number = 0 if not (name or file) else self._functions.get((name, file))
        if number is None:
            texts = self._text(name), self._text(file)
            number = self._new(self._functions, (name, file))
            table = self._dictionary.function_table
            table.add(name_strindex=texts[0], filename_strindex=texts[1])
        return number

    def _link(self, taken: ProcessSample) -> int:
        ids = taken.trace_id, taken.span_id
        number = 0 if not taken.span_id else self._links.get(ids)
        if number is None:
            number = self._new(self._links, ids)
            self._dictionary.link_table.add(trace_id=ids[0], span_id=ids[1])
        return number

    def _attribute(self, name: str, value: str | int | bool) -> int:
        number = self._attributes.get((name, value))
        if number is None:
            key = self._text(name)
            number = self._new(self._attributes, (name, value), len(str(value).encode()))
            self._dictionary.attribute_table.add(key_strindex=key, value=_any_value(value))
        return number

    def _text(self, text: str) -> int:
        number = 0 if not text else self._texts.get(text)
        if number is None:
            number = self._new(self._texts, text, len(text.encode()))
            self._dictionary.string_table.append(text)
        return number

    def _new(self, known: dict[_Key, int], key: _Key, more_bytes: int = 0) -> int:
        number = known[key] = len(known) + 1
        self.size_bytes += _ITEM_BYTES + more_bytes
        return number


def _any_value(value: str | int | bool) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    return AnyValue(int_value=value) if isinstance(value, int) else AnyValue(string_value=value)


PROFILES = Signal(
    name="PROFILES",
    items="profile",
    service="profiles.v1development.ProfilesService",
    request=service.ExportProfilesServiceRequest,
    response=service.ExportProfilesServiceResponse,
    rejected="rejected_profiles",
    # ``ProfileEncoder`` encodes a whole request.
    open_encoder=lambda: lambda profile: profile.data,
    join=lambda batch: b"".join(pending.content for pending in batch),
    most_items=1,
)
