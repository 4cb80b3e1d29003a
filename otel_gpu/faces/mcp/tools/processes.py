"""``get_processes``: who was watched."""

from collections import Counter
from typing import Annotated, Any

from otel_gpu.faces.mcp.answers import first_of, inert, micros, name_of
from otel_gpu.faces.mcp.arguments import Question, rows
from otel_gpu.faces.mcp.captures import Capture, Study
from otel_gpu.faces.mcp.tool import Answer, about, noun, since, tool
from otel_gpu.findings.document import ImageKey, Process, key_of

_COMMAND = 300


@tool("Processes")
def get_processes(
    capture: Capture, asked: Question, limit: Annotated[int, rows(500, "processes")] = 50
) -> Answer:
    """
    Which processes were watched, those with most CUDA calls first: name, command line, container,
    number of calls, time lost, verdict. A process that makes no calls (a data loader's worker) is
    listed where it was followed. began_us is relative to the window, null where it is not known.
    lost_us is what slow calls and gaps took beyond what is usual, explained or not.
    """
    study = capture.study(asked)
    document = study.document
    calls: Counter[ImageKey] = Counter()
    lost_ns: Counter[ImageKey] = Counter()
    for row in document.apis:
        calls[key_of(row.process)] += row.calls
    for slot in document.slots:
        if slot.process is not None:
            lost_ns[key_of(slot.process)] += round(slot.lost_ns)
    processes = {key_of(process.process): process for process in document.processes}
    shown = [
        {
            **_identity(process, study),
            "calls": calls[key],
            "lost_us": micros(lost_ns[key]),
            "verdict": process.verdict,
        }
        for key, process in sorted(processes.items(), key=lambda item: (-calls[item[0]], item[0]))
    ]
    return {**about(document), "processes": first_of(shown, limit)}


def _identity(process: Process, study: Study) -> dict[str, Any]:
    health = study.health
    # Another tool does not say when what it found running began.
    has_begun = not health.is_foreign or process.start_unix_ns > health.capture_unix_ns
    has_command = process.command != process.process.comm
    return {
        **noun(process, "pid service"),
        "thread": name_of(process.process.comm),
        "command": inert(process.command, _COMMAND) if has_command else "",
        "began_us": since(process.start_unix_ns, study.document) if has_begun else None,
        **{name: name_of(value) for name, value in process.places.items()},
    }
