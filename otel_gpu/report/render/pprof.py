"""
Stacks as a file for pprof: ``go tool pprof``, and other readers of its format.

The format is the message ``perftools.profiles.Profile`` of
https://github.com/google/pprof/blob/main/proto/profile.proto, compressed with gzip. The table below
has the fields that are written; frames are innermost first. Process and thread of a stack are
labels: ``-tagroot process`` puts them into the graph, ``-tagfocus pid=4242`` filters.
"""

import gzip
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClassesForFiles

from otel_gpu.report.document import Frame
from otel_gpu.report.stacks.top_stacks import (
    ALLOCATED,
    CALLED,
    CPU,
    IN_USE,
    OFF_CPU,
    PEAK,
    WAITED,
    WALL,
    StackMeasure,
    StackReport,
    StackRow,
)
from otel_gpu.report.wording.formats import (
    printable,
    process_name,
    service_of,
    thread_name,
    whole_line,
)

_PACKAGE = "perftools.profiles"
_FILE = "profile.proto"
# Name, number, and type; a capital letter begins the name of a message, "*" means repeated.
_MESSAGES: Mapping[str, tuple[tuple[str, int, str], ...]] = {
    "Profile": (
        ("sample_type", 1, "*ValueType"),
        ("sample", 2, "*Sample"),
        ("location", 4, "*Location"),
        ("function", 5, "*Function"),
        ("string_table", 6, "*string"),
        ("time_nanos", 9, "int64"),
        ("duration_nanos", 10, "int64"),
        ("period_type", 11, "ValueType"),
        ("period", 12, "int64"),
        ("comment", 13, "*int64"),
        ("default_sample_type", 14, "int64"),
    ),
    "ValueType": (("type", 1, "int64"), ("unit", 2, "int64")),
    "Sample": (("location_id", 1, "*uint64"), ("value", 2, "*int64"), ("label", 3, "*Label")),
    "Label": (("key", 1, "int64"), ("str", 2, "int64"), ("num", 3, "int64")),
    "Location": (("id", 1, "uint64"), ("line", 4, "*Line")),
    "Line": (("function_id", 1, "uint64"), ("line", 2, "int64")),
    "Function": (
        ("id", 1, "uint64"),
        ("name", 2, "int64"),
        ("filename", 4, "int64"),
    ),
}
_KINDS: Mapping[str, Any] = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
}
# By kind of report: its measures, with pprof's names.
_VALUES: Mapping[str, Mapping[StackMeasure, tuple[str, str]]] = {
    CALLED: {
        StackMeasure.CALLS: ("calls", "count"),
        StackMeasure.TIME: ("time", "nanoseconds"),
        StackMeasure.BYTES: ("bytes", "bytes"),
    },
    WAITED: {StackMeasure.CALLS: ("waits", "count"), StackMeasure.TIME: ("delay", "nanoseconds")},
    CPU: {StackMeasure.CALLS: ("samples", "count"), StackMeasure.TIME: ("cpu", "nanoseconds")},
    OFF_CPU: {StackMeasure.CALLS: ("waits", "count"), StackMeasure.TIME: ("delay", "nanoseconds")},
    WALL: {StackMeasure.TIME: ("wall", "nanoseconds")},
    **{
        kind: {
            StackMeasure.CALLS: (f"{name}_objects", "count"),
            StackMeasure.BYTES: (f"{name}_space", "bytes"),
        }
        for kind, name in ((IN_USE, "inuse"), (ALLOCATED, "alloc"), (PEAK, "peak"))
    },
}
_MOST = (1 << 63) - 1


def pprof_file(report: StackReport) -> bytes:
    """Return the file; pprof's default is the report's measure."""
    return gzip.compress(_profile(report).SerializeToString(deterministic=True), mtime=0)


def _profile(report: StackReport) -> Any:  # noqa: ANN401 -- made from the table above
    texts: defaultdict[str, int] = defaultdict(lambda: len(texts))
    # The format requires the empty string first.
    texts[""]
    frames: defaultdict[Frame, int] = defaultdict(lambda: len(frames) + 1)
    values = _VALUES[report.kind]
    measures = [by for by in values if by == report.by] or list(values)[-1:]
    types = [{"type": texts[name], "unit": texts[unit]} for name, unit in values.values()]
    profile = _message("Profile")(
        sample_type=types,
        sample=[
            {
                "location_id": [frames[frame] for frame in row.stack.frames],
                "value": [min(row.measure(by), _MOST) for by in values],
                "label": list(_labels(row, texts)),
            }
            for row in report.rows
        ],
        time_nanos=min(report.start_unix_ns, _MOST),
        duration_nanos=min(report.end_unix_ns - report.start_unix_ns, _MOST),
        comment=[texts[printable(text)] for text in (report.source, *report.notes)],
        default_sample_type=texts[values[measures[0]][0]],
    )
    if report.kind == CPU:
        # Each sample states the time that it represents.
        profile.period_type.CopyFrom(profile.sample_type[-1])
        profile.period = 1
    # Names are written without the library's mangled form, which pprof would demangle: it takes the
    # brackets of <module> for a template's.
    functions: defaultdict[tuple[int, int], int] = defaultdict(lambda: len(functions) + 1)
    for frame, number in frames.items():
        name = printable(frame.function) if frame.file else whole_line(frame)
        title = texts[name or "??"], texts[printable(frame.file or frame.module)]
        line = {"function_id": functions[title], "line": min(frame.line, _MOST)}
        profile.location.add(id=number, line=[line])
    for (name_at, file_at), number in functions.items():
        profile.function.add(id=number, name=name_at, filename=file_at)
    profile.string_table.extend(texts)
    return profile


def _labels(row: StackRow, texts: Mapping[str, int]) -> Iterator[dict[str, int]]:
    process, thread = row.process, row.thread
    yield {"key": texts["process"], "str": texts[process_name(process)]}
    yield {"key": texts["service"], "str": texts[printable(service_of(process))]}
    yield {"key": texts["pid"], "num": process.pid}
    if thread is not None:
        yield {"key": texts["thread"], "str": texts[thread_name(thread)]}
    yield {"key": texts["kind"], "str": texts[printable(row.name)]}


@cache
def _message(name: str) -> Any:  # noqa: ANN401 -- a class that is made here
    file = FileDescriptorProto(name=_FILE, package=_PACKAGE, syntax="proto3")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for field, number, kind in fields:
            one = described.field.add(name=field, number=number)
            one.label = one.LABEL_REPEATED if kind.startswith("*") else one.LABEL_OPTIONAL
            kind = kind.removeprefix("*")  # noqa: PLW2901
            one.type = _KINDS.get(kind, one.TYPE_MESSAGE)
            if kind not in _KINDS:
                one.type_name = f".{_PACKAGE}.{kind}"
    # In a pool of its own: another library may define the same name.
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClassesForFiles([_FILE], pool)[f"{_PACKAGE}.{name}"]
