"""
Check the requirements of a capture. The exit code is 0 if this host can capture, and 1 if something
is missing.
"""

import os
import platform
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable

from rich.table import Column, Table
from rich.text import Text

from otel_gpu.cli.commands import JSON_HELP, Output, add_pids
from otel_gpu.cli.doctor.checks import CheckResult, CheckStatus, can_capture, named, to_json
from otel_gpu.cli.doctor.host import CheckedHost, check_loader, examine_host
from otel_gpu.cli.doctor.visibility import examine_process, examine_processes
from otel_gpu.cli.service.systemd import examine_service
from otel_gpu.config import Config
from otel_gpu.report.wording.formats import printable

_STYLES = {
    CheckStatus.OK: "green",
    CheckStatus.WARNING: "yellow",
    CheckStatus.MISSING: "bold red",
}


def add_arguments(parser: ArgumentParser) -> None:
    add_pids(parser, "also check what can be observed of this process")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)


def run(args: Namespace, config: Config, out: Output) -> int:
    """Check the host and the named processes."""
    host = CheckedHost(release=platform.release(), machine=platform.machine())
    findings = [
        *examine_host(host, os.environ, kernel_log=config.devices.kernel_log),
        *named(
            loader=check_loader(host, config.capture.loader),
            cuda_libraries=examine_processes(),
        ),
        *examine_service(),
    ]
    processes = [finding for pid in args.pid for finding in examine_process(pid)]
    if args.json:
        out.json(to_json(findings, processes))
    else:
        for shown in (findings, processes) if processes else (findings,):
            out.stdout_console.print(_table(shown))
            out.line()
        out.line(_verdict(findings, processes))
    return 0 if can_capture([*findings, *processes]) else 1


def _table(findings: Iterable[CheckResult]) -> Table:
    columns = (Column(no_wrap=True), Column(no_wrap=True), Column(overflow="fold"))
    table = Table(*columns, box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for finding in findings:
        detail = Text(printable(finding.detail))
        if finding.hint and finding.status != CheckStatus.OK:
            detail.append(f"\nhint: {printable(finding.hint)}", style="dim")
        style = _STYLES[finding.status]
        table.add_row(Text(finding.status, style=style), Text(finding.name), detail)
    return table


def _verdict(findings: list[CheckResult], processes: list[CheckResult]) -> str:
    if missing := [finding.name for finding in findings if finding.status == CheckStatus.MISSING]:
        return f"This host cannot capture: {', '.join(missing)}."
    if not can_capture(processes):
        return "This host can capture, but not from every process named."
    return "This host can capture."
