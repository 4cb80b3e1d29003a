"""
Capture the CUDA calls, scheduler stalls and forks of unmodified programs, and send them to the
endpoint of OTEL_EXPORTER_OTLP_*. Select what to watch with a command after --, --pid, --cgroup or
--all. A command keeps its input and output, and this verb exits with its exit code. Without an
endpoint, or with --store, the capture is kept in a file that explain and query read.
"""

import logging
import os
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from otel_gpu import pipeline
from otel_gpu.capture.probes.refusals import Refusals
from otel_gpu.cli.commands import Output
from otel_gpu.cli.flight_recorder import live_store, store_path, telemetry_files
from otel_gpu.cli.live_capture import (
    Started,
    exit_code_of,
    load_programs,
    open_session,
    start_command,
)
from otel_gpu.cli.targets import add_target_arguments, check_targets
from otel_gpu.config import Config
from otel_gpu.enrich.activities import OpenCallActivity
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.enrich.identity.identities import Program
from otel_gpu.enrich.stack_text import describe_place
from otel_gpu.faults import Faults, Isolated
from otel_gpu.limits.recent import Recent
from otel_gpu.limits.shares import EntryOwner, ShareBound
from otel_gpu.procfs.users import user_number

CONFIG_FLAGS = ("spans.mode", "stacks.mode", "export.otlp_file", "store.path")
TAKES_COMMAND = True

_logger = logging.getLogger(__name__)

_MAX_LOGGED = 4_096


def add_arguments(parser: ArgumentParser) -> None:
    add_target_arguments(parser)
    parser.add_argument(
        "--summary",
        choices=("auto", "always", "never"),
        default="auto",
        help="print the findings to standard error: live on a terminal, and at the end",
    )


def run(args: Namespace, config: Config, out: Output) -> int:
    """Capture; return the command's exit code, or 0 if no part of the agent was switched off."""
    check_targets(args)
    faults = Faults()
    with start_command(args, config, telemetry_files(config)) as started:
        _capture(args, config, out=out, started=started, faults=faults)
    return exit_code_of(started, faults)


def _capture(
    args: Namespace, config: Config, out: Output, started: Started, faults: Faults
) -> None:
    # After the fork: these imports take a third of a second and start threads.
    from otel_gpu.export.exports import Exports, open_exports  # noqa: PLC0415

    rejected: Counter[str] = Counter()
    with (
        load_programs(args, config, started) as programs,
        open_exports(config, os.environ, live=True, faults=faults) as exports,
        live_store(config, faults) as store,
        ExitStack() as stack,
    ):
        summary = None
        if args.summary != "never":
            # rich takes megabytes that an agent without a summary does not need.
            from otel_gpu.report.render.text.summary import Summary, is_live  # noqa: PLC0415

            console = out.stderr_console
            live = is_live(args.summary, console, shares_terminal=started.command is not None)
            summary = stack.enter_context(Summary(console, live=live, dropped=exports.dropped))
        sinks: list[Isolated[Any]] = [
            Isolated(faults, place="export", part=exports, renew=Exports.renew)
        ]
        if store is not None:
            sinks.append(store)

        def explain(_: pipeline.ExplainStage | None = None) -> pipeline.ExplainStage:
            return pipeline.ExplainStage(config, *sinks)

        explaining = Isolated(faults, place="explain", part=explain(), renew=explain)
        parts = [*sinks, explaining, Isolated(faults, "hang_log", _HangLog())]
        if summary is not None:
            parts.append(Isolated(faults, "summary", summary))

        def status() -> Mapping[str, Any]:
            _name_programs(programs.refusals, ShareBound.EXPORT_QUEUE, exports.take_cut())
            _name_programs(programs.refusals, ShareBound.CHAINS, explaining.part.take_cut())
            return {"rejected": dict(rejected), "dropped": dict(exports.dropped())}

        with open_session(
            args, config, programs=programs, started=started, status=status, faults=faults
        ) as batches:
            pipeline.process(batches, Enricher(), observers=parts, rejected=rejected, faults=faults)
            explaining.call(pipeline.ExplainStage.close)
            if not exports.shutdown(config.export.shutdown_timeout_s):
                _logger.warning("not everything could be exported before the time was over")
    if summary is not None:
        with faults.at("summary"):
            summary.print_final()
        if store is not None:
            out.note(f"kept in {store_path(config)}: otel-gpu explain --store {store_path(config)}")


def _name_programs(
    refusals: Refusals, bound: ShareBound, counts: Mapping[Program | None, int]
) -> None:
    for process, count in counts.items():
        if process is not None:
            holder = EntryOwner(process.pid, user_number(process.user))
            refusals.add(bound, holder, count, name=process.comm)


class _HangLog:
    # Logs each call that does not return, once. Operators search for this text.
    observes = frozenset({OpenCallActivity})

    def __init__(self) -> None:
        self._logged: Recent[tuple[int, int, int, int], None] = Recent(_MAX_LOGGED)

    def observe(self, activity: OpenCallActivity) -> None:
        event = activity.event
        key = (event.pid, event.tid, event.start_ktime_ns, event.depth)
        is_new = key not in self._logged
        # Hanging calls are observed repeatedly and stay; returned ones are evicted.
        self._logged[key] = None
        if is_new:
            place = activity.stack.place if activity.stack else None
            _logger.warning(
                "thread %d (%s) of %s, process %d, has been inside %s for %s%.1f s%s",
                *(event.tid, event.comm, activity.process.service_name, event.pid),
                activity.api.name,
                "at least " if event.began_before_capture else "",
                (activity.seen_unix_ns - activity.start_unix_ns) / 1e9,
                f", in {describe_place(place)}" if place else "",
            )
