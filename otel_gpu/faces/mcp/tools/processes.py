"""``get_processes``: who was watched."""

from collections import Counter
from typing import Any

from otel_gpu.enrich.activities import ProcessImage
from otel_gpu.faces.mcp.answers import first_of, inert, micros, name_of
from otel_gpu.faces.mcp.arguments import WINDOW, Question
from otel_gpu.faces.mcp.captures import Capture, Study
from otel_gpu.faces.mcp.tool import Answer, Tool, about, limit_argument, service, since
from otel_gpu.findings.document import UNKNOWN

_DEFAULT = 50
_COMMAND = 300
_PLACES = ("container.", "k8s.")


def answer(capture: Capture, question: Question) -> Answer:
    """Return the processes of a window."""
    study = capture.study(question.begin, question.end, question.pids)
    report = study.report
    verdicts = {_key_of(verdict.process): verdict.verdict for verdict in report.verdicts}
    calls: Counter[tuple[int, int]] = Counter()
    lost_ns: Counter[tuple[int, int]] = Counter()
    for row in report.apis:
        calls[_key_of(row.process)] += row.calls
    for slot in report.slots:
        if slot.process is not None:
            lost_ns[_key_of(slot.process)] += round(slot.lost_ns)
    ranked = sorted(report.processes, key=lambda image: (-calls[_key_of(image)], _key_of(image)))
    rows = [
        {
            **_identity(image, study),
            "calls": calls[_key_of(image)],
            "lost_us": micros(lost_ns[_key_of(image)]),
            "verdict": verdicts.get(_key_of(image), UNKNOWN),
        }
        for image in ranked
    ]
    return {**about(report), "processes": first_of(rows, question.values.get("limit", _DEFAULT))}


def _identity(image: ProcessImage, study: Study) -> dict[str, Any]:
    health = study.health
    # Another tool does not say when what it found running began.
    has_begun = not health.is_foreign or image.start_unix_ns > health.capture_unix_ns
    arguments = image.attributes.get("process.command_args")
    shown: dict[str, Any] = {
        "pid": image.pid,
        "service": service(image),
        "thread": name_of(image.comm),
        "command": inert(" ".join(map(str, arguments)), _COMMAND) if arguments else "",
        "began_us": since(image.start_unix_ns, study.report) if has_begun else None,
    }
    for name, value in image.attributes.items():
        if name.startswith(_PLACES):
            shown[name] = name_of(value)
    return shown


def _key_of(image: ProcessImage) -> tuple[int, int]:
    return image.pid, image.image_ktime_ns


TOOL = Tool(
    "get_processes",
    "Processes",
    "Which processes were watched, those with most CUDA calls first: name, command line, container, "
    "number of calls, time lost, verdict. A process that makes no calls (a data "
    "loader's worker) is listed where it was followed. began_us is relative to the window, "
    "null where it is not known. lost_us is what slow calls and gaps took beyond what is usual, "
    "explained or not.",
    (*WINDOW, limit_argument(_DEFAULT, 500, "processes")),
    answer,
)
