"""
install writes the unit, its environment file and its configuration, and prints the next steps. It
starts nothing, and leaves files that were changed as they are. uninstall removes unchanged files.
status shows whether the service runs, its cost and its losses; its exit code is 0 when it runs.
"""

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from otel_gpu.cli.commands import JSON_HELP, Output, UsageError
from otel_gpu.cli.flight_recorder import store_path
from otel_gpu.cli.service.files import UNIT, FileAction, ServiceLayout
from otel_gpu.cli.service.systemd import ServiceState, state_of_service
from otel_gpu.cli.service.trust import parts_of_program, untrusted
from otel_gpu.config import Config
from otel_gpu.errors import HostError, StoreError
from otel_gpu.procfs.capabilities import effective_capabilities
from otel_gpu.recorder.reader import StoreReader
from otel_gpu.report.wording.formats import format_duration, format_size, printable

CONFIG_FLAGS = ("store.path",)

_MOST_CACHES = 5
_ACTIONS = ("install", "uninstall", "status")
# Per action: the past tense, the infinitive for --dry-run, and a suffix.
_WORDING: dict[FileAction, tuple[str, str, str]] = {
    FileAction.WRITE: ("wrote", "write", ""),
    FileAction.REPLACE: ("brought up to date", "bring up to date", ""),
    FileAction.BESIDE: ("wrote", "write", ", beside the one that was changed here"),
    FileAction.UNCHANGED: ("left as it is", "leave as it is", ""),
    FileAction.REMOVE: ("removed", "remove", ""),
    FileAction.KEEP: ("kept", "keep", ", which was changed here"),
}
_NEXT = (
    "next:",
    "  1. set the endpoint in /etc/otel-gpu/otel-gpu.env; without one, telemetry stays on this host",
    "  2. systemctl daemon-reload",
    "  3. systemctl enable --now otel-gpu",
    "  4. otel-gpu service status; journalctl -u otel-gpu",
)
_STAYS = "the flight recorder stays: /var/lib/otel-gpu"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=_ACTIONS, help="what to do")
    root = "root folder to install into or uninstall from, such as that of an image or a package"
    parser.add_argument("--root", type=Path, default=Path("/"), metavar="DIR", help=root)
    program = "program of the unit; default: this otel-gpu"
    parser.add_argument("--program", type=Path, metavar="PATH", help=program)
    dry = "print what would be done, and do nothing"
    parser.add_argument("--dry-run", action="store_true", help=dry)
    parser.add_argument("--json", action="store_true", help=f"status: {JSON_HELP}")


def run(args: Namespace, config: Config, out: Output) -> int:
    """Install, uninstall or show the status, for which 0 means that the service runs."""
    if args.action == "status":
        if args.dry_run or args.program or args.root != Path("/"):
            about = "status asks the systemd of this host, and takes --json and --store only"
            raise UsageError(about)
        return _status(args, config, out)
    if args.json:
        raise UsageError("--json needs the action status")
    root, own_program = args.root.absolute(), Path(sys.prefix) / "bin" / "otel-gpu"
    layout = ServiceLayout(root, args.program or own_program)
    lines: tuple[str, ...] = _NEXT
    if args.action == "install":
        if root == Path("/"):
            _refuse_untrusted([args.program] if args.program else parts_of_program(own_program))
        steps, carry_out = layout.plan_install(), layout.install
    else:
        if root == Path("/") and not args.dry_run:
            _refuse_running()
        steps, carry_out = layout.plan_uninstall(), layout.uninstall
        lines = (*(() if steps else ("nothing is installed",)), _STAYS)
    if not args.dry_run:
        carry_out(steps)
    for step in steps:
        done, do, more = _WORDING[step.action]
        verb = f"would {do}" if args.dry_run else done
        out.line(f"{verb} {printable(str(step.path))}{more}")
    for line in lines:
        out.line(line)
    return 0


def _refuse_untrusted(paths: Sequence[Path]) -> None:
    for found in untrusted(paths):
        message = f"others than root could change what the service runs: {printable(found)}"
        hint = "install otel-gpu as root, with a Python of the system, in /opt/otel-gpu"
        raise HostError(message, hint=hint)


def _refuse_running() -> None:
    try:
        state = state_of_service()
    except HostError:
        return  # no systemd, so nothing runs under it
    if state.active in {"active", "activating"}:
        raise HostError("the service is running", hint=f"systemctl disable --now {UNIT}")


def _status(args: Namespace, config: Config, out: Output) -> int:
    state = state_of_service()
    path = store_path(config)
    recorder = _ask_recorder(path)
    held = effective_capabilities(state.pid) if state.pid else None
    if args.json:
        service = {**state._asdict(), "capabilities": held}
        out.json({"schema_version": 1, "service": service, "recorder": recorder})
    else:
        out.line(_describe_state(state))
        if state.uptime_s is not None:
            out.line(_describe_cost(state, state.uptime_s, recorder))
            if held is not None:
                out.line(f"rights    {', '.join(held) or 'no capabilities'}")
        if caches := _describe_caches(recorder):
            out.line(caches)
        if state.has_errors:
            out.line(f"agent     {printable(state.word)}")
        out.line(_describe_recorder(path, recorder))
    return 0 if state.active == "active" else 1


def _describe_state(state: ServiceState) -> str:
    if not state.is_installed:
        return "service   not installed; otel-gpu service install"
    words = [f"{state.active} ({state.sub})"]
    if state.pid and state.uptime_s is not None:
        words.append(f"process {state.pid}, for {format_duration(state.uptime_s * 1e9)}")
    words.append(f"restarted {state.restarts} times" if state.restarts else "")
    words.append(f"result: {state.result}" if state.result != "success" else "")
    return "service   " + ", ".join(filter(None, [*words, state.enabled]))


def _describe_cost(state: ServiceState, uptime_s: float, recorder: Mapping[str, Any]) -> str:
    words = []
    cpu_ns = state.cpu_ns
    if cpu_ns is None and recorder.get("last_unix_ns", 0) > time.time_ns() - uptime_s * 1e9:
        cpu_ns = recorder["agent"].get("cpu_ns")  # measured by the agent in this run
    if cpu_ns is not None:
        share = cpu_ns / 1e9 / max(uptime_s, 1e-3)
        words.append(f"{format_duration(cpu_ns)} of CPU time ({100 * share:.1f} % of a core)")
    if state.memory_bytes is not None:
        limit = state.memory_limit_bytes
        of_limit = f" of at most {format_size(limit)}" if limit else ""
        words.append(f"{format_size(state.memory_bytes)} of memory{of_limit}")
    return "cost      " + (", ".join(words) or "not accounted for on this host")


def _describe_caches(recorder: Mapping[str, Any]) -> str:
    sizes: Mapping[str, int] = recorder.get("agent", {}).get("cache_bytes", {})
    if not sizes:
        return ""
    entries = recorder["agent"].get("cache_entries", {})
    largest = sorted(sizes, key=lambda name: -sizes[name])[:_MOST_CACHES]
    parts = (
        f"{printable(name)} {format_size(sizes[name])} ({entries.get(name, 0):,})"
        for name in largest
    )
    return f"caches    {format_size(sum(sizes.values()))}: {', '.join(parts)}"


def _ask_recorder(path: Path) -> dict[str, object]:
    # The agent's own figures in the flight recorder, or why it cannot be read.
    try:
        with StoreReader(path) as reader:
            status = reader.execute("SELECT unix_ns, info FROM statuses ORDER BY seq DESC LIMIT 1")
            losses = reader.execute("SELECT place, reason, count FROM v_losses ORDER BY 1, 2")
    except StoreError as error:
        return {"path": str(path), "problem": str(error)}
    found: dict[str, object] = {"path": str(path), "losses": [list(row) for row in losses.rows]}
    for unix_ns, info in status.rows:
        found |= {"last_unix_ns": unix_ns, "agent": json.loads(info)}
    return found


def _describe_recorder(path: Path, recorder: Mapping[str, Any]) -> str:
    if "problem" in recorder:
        return f"losses    not known here: {printable(recorder['problem'])}"
    losses = (f"{place} {reason} {count:,}" for place, reason, count in recorder["losses"] if count)
    listed = ", ".join(map(printable, losses))
    return f"losses    {listed or 'none'} (in {path})"
