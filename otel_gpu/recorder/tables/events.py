"""
The tables of events: calls, stalls, gaps, forks, open calls, samples, steps and the like.

Each is described once. The schema, the rows to write and the activities of playback follow from that.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import call, itemgetter
from typing import Any, NamedTuple

from otel_gpu.enrich.activities import (
    Activity,
    CallActivity,
    ContextActivity,
    DeviceFaultActivity,
    ForkActivity,
    GapActivity,
    OpenCallActivity,
    SampleActivity,
    StallActivity,
)
from otel_gpu.enrich.ids import SpanIds
from otel_gpu.enrich.marks import RangeActivity, StepActivity
from otel_gpu.recorder.rows.events import event_rows
from otel_gpu.recorder.tables.columns import (
    MAX_INTEGER,
    S64,
    TEXT,
    U64,
    Column,
    ColumnClock,
    Row,
    Table,
)
from otel_gpu.recorder.tables.fields import (
    DEVICE,
    END,
    PROCESS,
    SEQ,
    STACK,
    START,
    UNIX,
    WAITED_FOR,
    event_columns,
)
from otel_gpu.wire.device_faults import DeviceFault
from otel_gpu.wire.events import CpuSample, CudaCall, Fork, Gap, OpenCall, Stall, ThreadContext
from otel_gpu.wire.marks import Range, Step

_new_tuple = tuple.__new__


def _length(name: str, meaning: str, made_of: str) -> Column:
    return Column(name, S64, meaning, unit="ns", made_of=made_of)


_DURATION = _length("duration_ns", "duration", "end_ktime_ns - start_ktime_ns")


_SINCE_START = {"start_unix_ns": "start_ktime_ns"}
_OWN_SPAN = ("trace_id", "span_id", "parent_span_id")


class Reference(NamedTuple):
    """
    A field of an activity beside its event, and its column.

    ``method`` is the name of a method of ``StoredNames``, which returns the number of the field's value,
    and of ``Dictionary``, which returns the value of a number. Empty: the column has the value itself.
    """

    field: str
    column: Column
    method: str


class EventTable(NamedTuple):
    """
    A table of events: ``seq``, the references, the end, the fields of the event.

    The other fields of an activity follow from its event.

    Attributes:
        event: The class of the events. Their first field is the time when the event was sent.
        ids: Returns the ids of an event, in the order of ``id_fields``.
        references: Columns beside the event.
        lengths: Columns computed from others.
        end: The column of the time when the event was sent, in Unix time.
        elsewhere: Text fields of the activity from another table; empty until that is read.
        apis: Fields of the activity that are APIs; the event's fields of these names number them.
        moments: Fields of the activity in Unix time, beside ``end``, and the event's field of each.
        id_fields: Fields of the activity that are ids of traces and spans.
    """

    name: str
    meaning: str
    activity: Any
    event: Any
    ids: Callable[[SpanIds, Any], tuple[bytes, ...]]
    references: tuple[Reference, ...]
    lengths: tuple[Column, ...] = (_DURATION,)
    end: Column = END
    elsewhere: tuple[str, ...] = ()
    apis: tuple[str, ...] = ()
    moments: Mapping[str, str] = _SINCE_START
    id_fields: tuple[str, ...] = _OWN_SPAN

    @property
    def table(self) -> Table:
        """The table of these events."""
        start = f"{self.end.name} + start_ktime_ns - {self.event._fields[0]}"
        # Events of a single time have no start.
        has_start = "start_ktime_ns" in self.event._fields
        return Table(
            self.name,
            self.meaning,
            SEQ,
            *(reference.column for reference in self.references),
            self.end,
            *event_columns(self.event),
            *((START._replace(kind=S64, made_of=start),) if has_start else ()),
            *self.lengths,
        )

    @property
    def end_place(self) -> int:
        """Index of the end in a row."""
        return 1 + len(self.references)

    def row_maker(self, names: Any) -> Callable[[int, object], Row]:  # noqa: ANN401 -- see Reference
        """Return a function from a seq and an activity to a row; ``names`` is a ``StoredNames``."""
        refer = [_method(names, reference) for reference in self.references]
        place_of = self.activity._fields.index
        fields = ("event", self.end.name, *(one.field for one in self.references))
        pick = itemgetter(*map(place_of, fields))
        apis = [(self.event._fields.index(name), place_of(name)) for name in self.apis]
        known_apis = names.known_apis
        flatten, _ = event_rows(self.event)

        def make(seq: int, activity: Any) -> Row:  # noqa: ANN401 -- of this table
            event, end_unix_ns, *values = pick(activity)
            for at, place in apis:
                if event[at] not in known_apis:
                    names.api(activity[place])
            # Takes half as long as unpacking both.
            return (seq, *map(call, refer, values), end_unix_ns) + flatten(event)  # noqa: RUF005

        return make

    def activity_maker(
        self,
        dictionary: Any,  # noqa: ANN401 -- see Reference
        ids_at: Callable[[int], SpanIds],
    ) -> Callable[[Row], Activity | None]:
        """
        Return a function from a row to its activity; it returns None if a required reference is unknown.

        ``ids_at`` returns the span ids of the capture that a ``seq`` belongs to.
        """
        find = [_method(dictionary, reference) for reference in self.references]
        needed = _getter(
            [place for place, one in enumerate(self.references) if not one.column.is_nullable]
        )
        find_api = dictionary.api
        fields, activity, ids_of = self.event._fields, self.activity, self.ids
        apis = _getter([fields.index(name) for name in self.apis])
        ktimes = _getter([fields.index(name) for name in self.moments.values()])
        empty = ("",) * len(self.elsewhere)
        made = [
            *("event", self.end.name, *(reference.field for reference in self.references)),
            *self.elsewhere,
            *self.apis,
            *self.moments,
            *self.id_fields,
        ]
        arrange = _getter([made.index(name) for name in activity._fields])
        _, restore = event_rows(self.event)
        end = self.end_place

        def make(row: Row) -> Activity | None:
            found = [*map(call, find, row[1:end])]
            if None in needed(found):
                return None
            end_unix_ns = row[end]
            event = restore(row[end + 1 :])
            times = [*map((end_unix_ns - event[0]).__add__, ktimes(event))]
            if times and (min(times) < 0 or max(times) > MAX_INTEGER):
                # As ``enrich`` limits the times of broken records.
                times = [min(max(0, unix_ns), MAX_INTEGER) for unix_ns in times]
            values = (
                event,
                end_unix_ns,
                *found,
                *empty,
                *map(find_api, apis(event)),
                *times,
                *ids_of(ids_at(row[0]), event),
            )
            # Inlined activity(…), which takes three times as long.
            one: Activity = _new_tuple(activity, arrange(values))
            return one

        return make


def _method(owner: object, reference: Reference) -> Callable[[object], object]:
    # Without a method the value is text, which str() returns unchanged.
    method: Callable[[object], object] = (
        getattr(owner, reference.method) if reference.method else str
    )
    return method


def _getter(places: Sequence[int]) -> Callable[[Sequence[object]], Sequence[object]]:
    # An itemgetter of one index returns no sequence, and one of no index cannot be made.
    first = places[0] if places else 0
    return itemgetter(*places) if len(places) > 1 else itemgetter(slice(first, first + len(places)))


def _no_ids(_ids: SpanIds, _event: object) -> tuple[bytes, ...]:
    return ()


_OF_PROCESS = Reference("process", PROCESS, "process")
_ON_DEVICE = Reference("device", DEVICE, "device")
_AT_STACK = Reference("stack", STACK, "program_stack")
_FUNCTIONS = Column(
    "stack",
    U64,
    "stack in the kernel; see stacks. NULL: unknown",
    is_nullable=True,
    refers_to="stacks",
)
_IN_KERNEL = Reference("functions", _FUNCTIONS, "stack")

EVENT_TABLES: tuple[EventTable, ...] = (
    EventTable(
        name="calls",
        meaning="Recorded CUDA calls: failed, slow, stalled or sampled ones, with their host time. "
        "aggregates counts all calls.",
        activity=CallActivity,
        event=CudaCall,
        ids=SpanIds.of_call,
        references=(_OF_PROCESS, _ON_DEVICE, _AT_STACK),
        elsewhere=("kernel",),
        apis=("api",),
    ),
    EventTable(
        name="stalls",
        meaning="Intervals of a thread off the CPU: first blocked, then runnable and waiting for a CPU.",
        activity=StallActivity,
        event=Stall,
        ids=SpanIds.of_stall,
        references=(
            _OF_PROCESS,
            Reference(
                "reason",
                Column(
                    "reason",
                    TEXT,
                    "why it was blocked; see reasons. Empty: not blocked",
                    refers_to="reasons",
                ),
                "reason",
            ),
            _IN_KERNEL,
            _AT_STACK,
            Reference("resource", WAITED_FOR, "resource"),
        ),
        lengths=(
            _DURATION,
            _length(
                "blocked_ns", "time in which it was blocked", "runnable_ktime_ns - start_ktime_ns"
            ),
            _length(
                "run_queue_ns",
                "time in which it waited for a CPU",
                "end_ktime_ns - runnable_ktime_ns",
            ),
        ),
        moments=_SINCE_START | {"runnable_unix_ns": "runnable_ktime_ns"},
        id_fields=("trace_id", "span_id", "run_queue_span_id", "parent_span_id"),
    ),
    EventTable(
        name="gaps",
        meaning="Recorded gaps between two outermost CUDA calls of one thread.",
        activity=GapActivity,
        event=Gap,
        ids=SpanIds.of_gap,
        references=(_OF_PROCESS, _ON_DEVICE),
        apis=("previous_api", "next_api"),
    ),
    EventTable(
        name="forks",
        meaning="Forks, with their duration.",
        activity=ForkActivity,
        event=Fork,
        ids=SpanIds.of_fork,
        references=(
            _OF_PROCESS,
            Reference(
                "child",
                Column("child", U64, "the new process; see processes", refers_to="processes"),
                "process",
            ),
        ),
    ),
    EventTable(
        name="open_calls",
        meaning="CUDA calls that had been open for long when they were reported.",
        activity=OpenCallActivity,
        event=OpenCall,
        ids=SpanIds.of_open_call,
        references=(_OF_PROCESS, _ON_DEVICE, _AT_STACK),
        lengths=(_length("age_ns", "age at that time", "ktime_ns - start_ktime_ns"),),
        end=Column(
            "seen_unix_ns",
            U64,
            "time of the report, in Unix time",
            unit="ns",
            clock=ColumnClock.UNIX,
        ),
        apis=("api",),
    ),
    EventTable(
        name="samples",
        meaning="Stacks of threads on a CPU, one per tick of its sampling clock.",
        activity=SampleActivity,
        event=CpuSample,
        ids=_no_ids,
        references=(
            _OF_PROCESS,
            _IN_KERNEL._replace(
                column=_FUNCTIONS._replace(
                    meaning="stack in the kernel; see stacks. NULL: none, or unknown"
                )
            ),
            _AT_STACK,
        ),
        lengths=(),
        end=UNIX._replace(meaning="when the clock ticked, in Unix time"),
        moments={},
        id_fields=(),
    ),
    EventTable(
        name="steps",
        meaning="Steps of threads, marked by their program or detected by the agent.",
        activity=StepActivity,
        event=Step,
        ids=SpanIds.of_step,
        references=(_OF_PROCESS,),
    ),
    EventTable(
        name="ranges",
        meaning="Ranges that programs marked with NVTX; tid is the thread that ended the range.",
        activity=RangeActivity,
        event=Range,
        ids=SpanIds.of_range,
        references=(_OF_PROCESS,),
    ),
    EventTable(
        name="thread_contexts",
        meaning="Spans of the application that threads were in, each before the call, gap or fork in that span.",
        activity=ContextActivity,
        event=ThreadContext,
        ids=_no_ids,
        references=(),
        lengths=(),
        end=UNIX,
        moments={},
        id_fields=(),
    ),
    EventTable(
        name="device_faults",
        meaning="Errors of devices (XIDs), as their driver reported them.",
        activity=DeviceFaultActivity,
        event=DeviceFault,
        ids=SpanIds.of_device_fault,
        references=(
            Reference(
                "process",
                Column(
                    "process",
                    U64,
                    "process whose work failed; NULL: no watched process",
                    is_nullable=True,
                    refers_to="processes",
                ),
                "process",
            ),
        ),
        lengths=(),
        end=UNIX,
        moments={},
    ),
)
