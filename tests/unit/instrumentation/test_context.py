"""What readers outside the process see of the span that a thread is in."""

import asyncio
import contextvars
import ctypes
import os
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from otel_gpu.instrumentation.context import PublishedContext
from otel_gpu.instrumentation.thread_context import load_publisher
from tests.pythons.interpreters import interpreter
from tests.unit.instrumentation.published_record import published


@pytest.fixture
def context():
    made = PublishedContext(sees_switches=False)
    yield made
    load_publisher().clear()


def span(number, flags=TraceFlags.SAMPLED):
    identity = SpanContext((number << 64) + 1, number, is_remote=False, trace_flags=flags)
    return trace.set_span_in_context(NonRecordingSpan(identity))


def said(number, flags=1):
    return (number << 64) + 1, number, flags


@contextmanager
def current(context, number):
    token = context.attach(span(number))
    try:
        yield
    finally:
        context.detach(token)


def test_what_is_current_is_published_and_nothing_after_it(context):
    """Identity and flags are those of the innermost span; outside of all there is none."""
    assert published() is None
    with current(context, 1):
        assert published() == said(1)
        token = context.attach(span(2, TraceFlags.DEFAULT))
        assert published() == said(2, flags=0)
        context.detach(token)
        assert published() == said(1)
    assert published() is None


def test_10007_spans_on_8_threads_are_each_published_where_they_are_innermost(context):
    """Random nesting: at each point the thread says the span that is innermost there."""
    numbers = iter(range(1, 10_008))
    lock = threading.Lock()
    seen, wrong = [], []

    def nest(chance, outer, depth):
        with lock:
            number = next(numbers, None)
        if number is None:
            return False
        with current(context, number):
            seen.append(number)
            going = True
            while going and depth < 12 and chance.random() < 0.45:
                going = nest(chance, number, depth + 1)
                if published() != said(number):
                    wrong.append(number)
        if published() != (said(outer) if outer else None):
            wrong.append(number)
        return going

    def work(seed):
        chance = random.Random(seed)  # noqa: S311 - any will do
        while nest(chance, None, 0):
            pass

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))

    assert sorted(seen) == list(range(1, 10_008))
    assert wrong == []


def test_a_child_of_fork_is_in_no_span_until_it_enters_one(context):
    """The same span, entered again in the child, is published there."""
    with current(context, 7):
        pid = os.fork()
        if not pid:
            first = published()
            with current(context, 7):
                os._exit(0 if (first, published()) == (None, said(7)) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert published() == said(7)


def test_a_child_of_a_c_program_that_forks_is_in_no_span(context):
    """``fork`` of libc, of which Python knows nothing."""
    libc = ctypes.CDLL(None)
    with current(context, 7):
        pid = libc.fork()
        if not pid:
            os._exit(0 if published() is None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_generator_is_in_the_span_that_opentelemetry_says(context):
    """What it attaches is current for who asks it, until it goes on."""

    def values():
        with current(context, 2):
            yield

    with current(context, 1):
        generator = values()
        next(generator)
        assert published() == said(2)
        next(generator, None)
        assert published() == said(1)


def test_a_thread_with_an_event_loop_publishes_nothing_wrong(context):
    """Its tasks take turns, of which nobody is told."""
    seen = set()

    async def task(number):
        for _ in range(7):
            with current(context, number):
                await asyncio.sleep(0)
                seen.add(published())

    async def tasks():
        await asyncio.gather(*map(task, range(2, 7)))

    with current(context, 1):
        asyncio.run(tasks())
        assert published() in {None, said(1)}
    with current(context, 8):
        assert published() == said(8)

    assert seen == {None}


def test_a_function_in_a_pool_leaves_nothing_behind(context):
    """It runs in the context of who asked for it, and what it attaches ends there."""
    with current(context, 1):
        asked = contextvars.copy_context()

    def work():
        with current(context, 2):
            inside = published()
        return inside, published()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(asked.run, work).result() == (said(2), None)
        assert pool.submit(published).result() is None


def test_after_spans_that_end_out_of_order_nothing_is_published_until_all_have(context):
    """It is not known which still run."""
    first, second = context.attach(span(1)), context.attach(span(2))
    context.detach(first)
    assert published() is None
    third = context.attach(span(3))
    assert published() is None
    context.detach(third)
    context.detach(second)
    with current(context, 4):
        assert published() == said(4)


def test_a_token_of_another_thread_is_refused_and_nothing_wrong_is_published(context):
    """As OpenTelemetry's own runtime context refuses it."""
    with ThreadPoolExecutor(1) as pool:
        token = pool.submit(context.attach, span(5)).result()
        with pytest.raises(ValueError, match="different Context"):
            context.detach(token)

    assert published() is None


def test_what_is_attached_and_never_detached_is_bounded(context):
    """A server that forgets it goes on, and says nothing."""
    tokens = [context.attach(span(number)) for number in range(1, 1001)]

    assert len(context._threads.stack) <= 256
    for token in reversed(tokens):
        context.detach(token)
    with current(context, 2000):
        assert published() == said(2000)


def test_a_span_that_ended_while_it_was_current_is_published_no_longer(context):
    """Others are not affected."""
    with current(context, 1):
        context.end(*said(2)[:2])
        assert published() == said(1)
        context.end(*said(1)[:2])
        assert published() is None


def test_what_surrounds_a_span_is_published_only_where_nothing_is_further_in(context):
    """A step is no current span, and CUDA calls are in it all the same."""
    with current(context, 1):
        context.set_enclosing(said(9))
        assert published() == said(9)
        with current(context, 2):
            assert published() == said(2)
        assert published() == said(9)
        context.set_enclosing(None)
        assert published() == said(1)
        context.set_enclosing(said(10))
    assert published() is None


def test_what_surrounds_a_span_lies_in_what_another_owner_says(context):
    """A range in a step that ends before it, as loops have them; each owner ends only its own."""
    context.set_enclosing(said(9), "loop")
    context.set_enclosing(said(10), "range")
    assert published() == context.innermost() == said(10)
    context.set_enclosing(said(11), "loop")
    assert published() == said(10)
    context.set_enclosing(None, "range")
    assert published() == said(11)
    context.set_enclosing(None, "loop")
    assert published() is None


def test_what_may_not_be_said_ends_what_was_said_before_it(context):
    """A step that begins in an event loop is none: the one before it is over all the same."""

    async def begin():
        context.set_enclosing(said(10))

    context.set_enclosing(said(9))
    asyncio.run(begin())
    assert published() is None


TASKS = """
import asyncio, contextvars, sys
sys.path.insert(0, sys.argv[1])
from tests.unit.instrumentation.test_context import PublishedContext, current, published, said

context = PublishedContext()
seen = []

async def task(number):
    for _ in range(7):
        with current(context, number):
            await asyncio.sleep(0)
            seen.append(published() == said(number))

async def tasks():
    await asyncio.gather(*map(task, range(2, 7)))

with current(context, 1):
    asyncio.run(tasks())
    seen.append(published() == said(1))
    contextvars.Context().run(lambda: seen.append(published() is None))
    seen.append(published() == said(1))
print(len(seen), all(seen), published())
"""


def test_where_the_interpreter_tells_of_switches_tasks_are_seen():
    """Each task is in its own span; who enters another context is in that one's."""
    found = interpreter("3.14-debian")
    packages = Path(pytest.__file__).parents[1]

    done = subprocess.run(
        [*found.command, "-c", TASKS, Path(__file__).parents[3]],
        env={"PYTHONPATH": str(packages), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("38 True None\n", "")


def test_without_a_library_for_this_machine_the_context_is_kept_all_the_same(monkeypatch):
    """And nothing is published."""
    monkeypatch.setattr("otel_gpu.instrumentation.context.load_publisher", lambda: None)
    context = PublishedContext()

    with current(context, 1):
        assert trace.get_current_span(context.get_current()).get_span_context().span_id == 1
        assert published() is None


def test_the_variable_of_opentelemetry_chooses_it():
    """Entry point ``otel_gpu`` of ``opentelemetry_context``."""
    program = "from opentelemetry import context; print(type(context._RUNTIME_CONTEXT).__name__)"

    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"OTEL_PYTHON_CONTEXT": "otel_gpu"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert (done.stdout, done.stderr) == ("PublishedContext\n", "")
