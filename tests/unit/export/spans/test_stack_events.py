"""What telemetry says of stacks."""

import pytest

from otel_gpu.export.spans import stack_events as stacks_module
from otel_gpu.export.spans.stack_events import Stacks, StackTelemetry
from otel_gpu.wire.frames import Frame
from tests.activities import EMPTY_FRAME, MALLOC_FRAME, PATTERN_FRAME, call_stack

TEXT = (
    "cudaMalloc (libcudart.so.12)\n"
    "at::native::empty_cuda (libtorch_cuda.so)\n"
    "fragmentation_pattern (/app/train.py:74)\n"
    "<module> (/app/train.py:102)"
)
TYPES = ("cuda", "native", "cpython", "cpython")
PLACE = {
    "code.function.name": "fragmentation_pattern",
    "code.file.path": "/app/train.py",
    "code.line.number": 74,
    "otel_gpu.stack.id": "9c1fb4e17d2a6b03",
}


def test_by_default_the_text_is_an_event():
    """The span has the id and the place, its event the text and what each line is."""
    told = Stacks("event", None).of(call_stack(), 1_000)

    (event,) = told.events
    assert dict(told.pairs) == PLACE
    assert (event.name, event.unix_ns) == ("stack", 1_000)
    assert dict(event.attributes) == {"code.stacktrace": TEXT, "otel_gpu.stack.frame_types": TYPES}
    assert told.logs == ()


def test_the_text_can_be_an_attribute():
    """Then there is no event."""
    told = Stacks("attribute", None).of(call_stack(), 1_000)

    assert dict(told.pairs) == PLACE | {
        "code.stacktrace": TEXT,
        "otel_gpu.stack.frame_types": TYPES,
    }
    assert (told.events, told.logs) == ((), ())


def test_the_text_can_be_a_log_record():
    """That stands for itself: it has the place too."""
    told = Stacks("log", None).of(call_stack(), 1_000)

    (log,) = told.logs
    assert dict(told.pairs) == PLACE
    assert (log.name, log.unix_ns) == ("otel_gpu.stack", 1_000)
    assert dict(log.attributes) == PLACE | {
        "code.stacktrace": TEXT,
        "otel_gpu.stack.frame_types": TYPES,
    }
    assert told.events == ()


@pytest.mark.parametrize(("mode", "stack"), [("none", call_stack()), ("event", None)])
def test_nothing_is_said(mode, stack):
    """Where nobody wants it, or nothing is known: also no place, which is a path of a file."""
    stacks = Stacks(mode, None)

    assert stacks.of(stack, 1_000) == StackTelemetry((), (), ())
    assert stacks.place(stack) == ()


def test_what_is_not_known_is_left_out():
    """A native function has no file and no line, one without a symbol has no name."""
    stacks = Stacks("event", None)

    assert dict(stacks.place(call_stack(1, (MALLOC_FRAME, EMPTY_FRAME)))) == {
        "code.function.name": "at::native::empty_cuda",
        "otel_gpu.stack.id": "0000000000000001",
    }
    assert dict(stacks.place(call_stack(2, (Frame("native", "", module="libx.so"),)))) == {
        "otel_gpu.stack.id": "0000000000000002",
    }


def test_an_incomplete_stack_is_marked():
    """In its text, and where a query can find it."""
    told = Stacks("event", None).of(call_stack(complete=False), 1_000)

    assert dict(told.pairs) == PLACE | {"otel_gpu.stack.complete": False}
    assert dict(told.events[0].attributes)["code.stacktrace"].endswith(
        "\n… incomplete: native eh_frame, python ok …"
    )


def test_a_limit_cuts_the_middle_of_the_text():
    """What a backend would cut at its end is made to fit before."""
    stack = call_stack(1, (MALLOC_FRAME, *[PATTERN_FRAME] * 200, MALLOC_FRAME))

    (event,) = Stacks("event", 400).of(stack, 1_000).events
    (whole,) = Stacks("event", 1 << 20).of(stack, 1_000).events

    text = dict(event.attributes)["code.stacktrace"]
    assert len(text) <= 400
    assert "\n… 193 frames left out …\n" in text
    assert len(text.splitlines()) == len(dict(event.attributes)["otel_gpu.stack.frame_types"])
    assert len(dict(whole.attributes)["code.stacktrace"]) <= 16_384
    assert Stacks("event", 0).of(stack, 1_000).events == ()


def test_names_cannot_forge_lines_or_attributes():
    """What a program calls its functions is shown and not obeyed."""
    frame = Frame("cpython", "f\nmain (x.py:1)", "/a\x1b[2J.py", 7)

    told = Stacks("event", None).of(call_stack(1, (frame,)), 1)

    assert dict(told.events[0].attributes)["code.stacktrace"] == (
        "f\\nmain (x.py:1) (/a\\x1b[2J.py:7)"
    )
    assert dict(told.pairs)["code.function.name"] == "f\\nmain (x.py:1)"
    assert dict(told.pairs)["code.file.path"] == "/a\\x1b[2J.py"


def test_the_same_stack_gives_the_same_objects():
    """So that an encoder knows them again; only the time is another."""
    stacks = Stacks("event", None)
    stack = call_stack()

    first, second = stacks.of(stack, 1), stacks.of(stack, 2)

    assert first.pairs is second.pairs
    assert first.events[0].attributes is second.events[0].attributes
    assert (first.events[0].unix_ns, second.events[0].unix_ns) == (1, 2)


def test_an_id_that_comes_to_stand_for_another_stack_is_noticed():
    """A recording may be forged, or hold two captures."""
    stacks = Stacks("event", None)
    stacks.of(call_stack(1, (MALLOC_FRAME,)), 1)

    (event,) = stacks.of(call_stack(1, (PATTERN_FRAME,)), 1).events

    assert dict(event.attributes)["code.stacktrace"] == "fragmentation_pattern (/app/train.py:74)"


def test_the_texts_that_are_kept_are_bounded(monkeypatch):
    """By their length together; the latest met stay."""
    monkeypatch.setattr(stacks_module, "_MAX_KEPT", 20_000)
    stacks = Stacks("event", None)
    known = call_stack(1)
    first = stacks.of(known, 1)
    for number in range(2, 1_000):
        stacks.of(call_stack(number), 1)
        assert stacks.of(known, 1).pairs is first.pairs
        assert stacks._characters <= 20_000

    assert len(stacks._entries) < 20
    assert stacks._characters == sum(entry.characters for entry in stacks._entries.values())
