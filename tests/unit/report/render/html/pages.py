"""Reports whose every name is the test's, and what a browser would see of their pages."""

from html.parser import HTMLParser

from markupsafe import escape

from otel_gpu.enrich.identity.identities import CallStack, Program, Resource, Who
from otel_gpu.explain.chains import Cause, Chain, Culprit, Effect, Evidence, Incident, Verdict
from otel_gpu.report.document import (
    ApiTotals,
    Balance,
    CulpritTime,
    Document,
    Load,
    OffCpu,
    Throttled,
    TimeBucket,
    TimeNode,
    Where,
    Window,
    processes_of,
)
from otel_gpu.report.render.html import page
from otel_gpu.report.render.html.markup import ENVIRONMENT, show
from otel_gpu.wire.frames import Frame
from tests.activities import SECOND, T0

MS = 1_000_000
# Elements that have no end, and those that stand inside of a line.
VOID = {"meta", "br"}
INLINE = {"span", "b", "a", "bdi", "code", "time"}


class Seen(HTMLParser):
    """What is in a page: its elements with the names of their attributes, and its text."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements = []
        self.values = []
        self.texts = []
        self.sources = {}
        self._open = []
        self.feed(page)
        self.close()
        assert self._open == []

    @property
    def text(self):
        return " ".join("".join(self.texts).split())

    def values_of(self, name):
        return [value for _, attribute, value in self.values if attribute == name]

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, tuple(name for name, _ in attrs)))
        self.values += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)
        if tag not in INLINE:
            self.texts.append(" ")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag
        if tag not in INLINE:
            self.texts.append(" ")

    def handle_data(self, data):
        inside = self._open[-1] if self._open else ""
        if inside in ("script", "style"):
            self.sources[inside] = data
        else:
            self.texts.append(data)

    def handle_comment(self, data):
        raise AssertionError(data)

    def unknown_decl(self, data):
        raise AssertionError(data)

    def handle_pi(self, data):
        raise AssertionError(data)


def part(name, *values, **named):
    """One piece of a page, as its template writes it."""
    assert page.ENVIRONMENT is ENVIRONMENT
    return getattr(ENVIRONMENT.get_template("parts.html").module, name)(*values, **named)


def text_of(markup):
    """What a reader reads of a piece of a page, or of what is put into one."""
    return Seen(markup if isinstance(markup, str) else escape(show(markup))).text


def stack_named(name, number):
    """A stack of 40 frames whose every text is ``name``; its second is the program's own."""
    frames = tuple(
        Frame("cpython", name, name, line + 1) if line % 2 else Frame("native", name, module=name)
        for line in range(40)
    )
    return CallStack(number, frames, number > 1, "eh_frame", "ok", frames[1])


def tree_named(name, kind):
    """Where the time went of a process whose every name is ``name``."""
    who = Who(900, 901, name, name, name, name, name, name, name)
    where = Where(name, name, 3)
    file = Resource("file", name, name, name, is_remote=True, source=name)
    work = TimeNode("host_work", MS, 0.5, Who(901, 901, name, name), where, 1)
    behind = TimeNode(kind, MS, 0.5, who, where, 1, resource=file)
    waited = TimeNode("ipc", 2 * MS, 1.0, who, where, 2, (work, behind), resource=file)
    unknown = TimeNode("unknown", MS, 0.5, note=name)
    return TimeNode(
        "all",
        4 * MS,
        1.0,
        children=(
            TimeNode("ipc", 3 * MS, 0.7, children=(waited, unknown)),
            TimeNode(name, MS, 0.3),
        ),
    )


def report_named(name, *, kind="sleep", severity="high", verdict="cpu-bound"):
    """A report with something in each of its parts; each string of the traced is ``name``."""
    process = Program(
        42,
        1,
        name,
        T0,
        {"service.name": name, "process.command_args": (name, name)},
    )
    other = Program(77, 1, name, T0, {})
    culprit, worker = Culprit(900, 901, name), Culprit(42, 43, name)
    called, waited = stack_named(name, 1), stack_named(name, 2)
    evidence = Evidence(
        name, "blocked", T0, T0 + 5 * MS, culprit, worker, name, (name, name), b"s" * 8, waited
    )
    inner = Evidence(
        name + "i", name, T0, T0 + 4 * MS, None, culprit, "", (name,), b"", is_cpu_idle=True
    )
    causes = (
        Cause(
            "ipc", 6 * MS, 0.6, worker, (evidence,), (Cause(kind, 5 * MS, 0.5, culprit, (inner,)),)
        ),
        Cause(kind, 3 * MS, 0.3, culprit, (evidence,)),
    )
    ids = b"t" * 16, b"s" * 8
    effect = Effect("slow_call", process, name, 42, name, T0, 10 * MS, 9 * MS, *ids, called)
    chains = tuple(Chain(f"{name}{n}", effect, causes, MS, severity) for n in range(3))
    incidents = (
        Incident(name, severity, T0, T0 + SECOND, 27 * MS, causes, MS, (name,), chains, 40),
        Incident(name, severity, T0, T0 + SECOND, 0, (), MS, (), (), 2),
        Incident(
            f"{name}c", severity, T0, T0 + SECOND, MS, causes, 0, (name,), (), 0, True, process
        ),
    )
    slots = [
        TimeBucket(image, T0 + n * SECOND, T0 + (n + 1) * SECOND, 5, 5.0, 3e8, 2, 4.0, 7e7, 9e8)
        for image in (None, process, other)
        for n in range(3)
    ]
    judged = Verdict(
        process, verdict, {"cpu": 0.7, name: 0.3}, {"io": MS, name: 5}, tree_named(name, kind)
    )
    return Document(
        source=f"/folder/{name}",
        window=Window(T0, T0 + 3 * SECOND),
        processes=tuple(processes_of((process, other), [judged])),
        apis=(
            ApiTotals(process, name, name, 5, 2, 1.0, 2.0, 3.0, 9, 0),
            ApiTotals(process, "cudaMalloc", "runtime", 5, 0, 1.0, float("nan"), 3.0, 9, 4096),
        ),
        balances=(Balance(process, 5, 4096, 2, 1024), Balance(other, 0, 0, 1, 8)),
        incidents=incidents,
        chains=chains,
        culprit_times=(
            CulpritTime(process, culprit, kind, 5 * MS, 3),
            CulpritTime(process, worker, "lock", 5, 3),
        ),
        off_cpu=(
            OffCpu(process, "other", "blocked", name, 5, 1),
            OffCpu(process, "9", "run_queue", "", 5, 0),
        ),
        time_buckets=tuple(slots),
        load=Load(1.5, 2, {name: 0.5}, 3, 0, (Throttled(name, 5, 1, 2),)),
        losses={name: 3},
        notes=(name, f"{name} again"),
    )
