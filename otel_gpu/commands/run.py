"""``otel-gpu run``: capture live, and export."""

import logging
import os
import signal
import threading
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from otel_gpu import pipeline
from otel_gpu.capture.command import Command
from otel_gpu.capture.guard import Guard
from otel_gpu.capture.programs import Programs
from otel_gpu.capture.recording import RecordingWriter
from otel_gpu.capture.session import Session
from otel_gpu.commands import Output, UsageError
from otel_gpu.commands.summary import Summary, is_live
from otel_gpu.config import Config
from otel_gpu.enrich.activities import Activity, OpenCallActivity
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.errors import RecordingError

NAME = "run"
HELP = "Capture live, and export."
DESCRIPTION = (
    "Capture the CUDA calls, scheduler stalls and forks of programs as they are, and send "
    "them to the endpoint of OTEL_EXPORTER_OTLP_*. Name what to watch: a command after --, "
    "--pid, --cgroup or --all. With a command, its input and output are its own, and its exit "
    "code is ours."
)
CONFIG_FLAGS = ("spans.mode", "export.otlp_file")
TAKES_COMMAND = True

_logger = logging.getLogger(__name__)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the verb's own arguments."""
    parser.add_argument(
        "--pid",
        type=int,
        action="append",
        default=[],
        metavar="PID",
        help="watch this process and its children; may be repeated",
    )
    parser.add_argument(
        "--cgroup",
        type=Path,
        metavar="FOLDER",
        help="watch the processes of this cgroup, also those that join it later",
    )
    parser.add_argument(
        "--all", action="store_true", help="watch every process that uses a CUDA library"
    )
    parser.add_argument("--duration", type=float, metavar="SECONDS", help="stop after this long")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="also write a recording, for replay and parse"
    )
    parser.add_argument(
        "--summary",
        choices=("auto", "always", "never"),
        default="auto",
        help="show what is found on standard error: live on a terminal, and at the end",
    )


def run(args: Namespace, config: Config, out: Output) -> int:
    """Capture; the command's exit code, or 0."""
    _check_targets(args)
    with ExitStack() as stack:
        command = guard = None
        if args.command:
            # Before anything else: a fork is cheapest, and safest, from a process with
            # little memory and one thread.
            guard = Guard()
            stack.callback(guard.dismiss)
            command = Command(args.command)
            stack.callback(command.close)
        return _capture(args, config, out, command, guard)


def _check_targets(args: Namespace) -> None:
    chosen = [bool(args.command), bool(args.pid), args.cgroup is not None, args.all]
    if sum(chosen) != 1:
        message = "name what to watch" if not any(chosen) else "name one kind of thing to watch"
        raise UsageError(message, hint="one of: -- COMMAND, --pid PID, --cgroup FOLDER, --all")
    for pid in args.pid:
        if not Path(f"/proc/{pid}").exists():
            raise UsageError(f"there is no process {pid}", hint="see `ps -e`")
    if args.cgroup is not None and not (args.cgroup / "cgroup.procs").exists():
        raise UsageError(f"{args.cgroup} is not a cgroup", hint="give its folder in /sys/fs/cgroup")
    if args.duration is not None and args.duration <= 0:
        raise UsageError("--duration must be more than 0 seconds")


def _capture(
    args: Namespace, config: Config, out: Output, command: Command | None, guard: Guard | None
) -> int:
    # A third of a second of imports, with threads: after the fork.
    from otel_gpu.export.exports import open_exports  # noqa: PLC0415

    rejected: Counter[str] = Counter()
    with (
        Programs(config, watch_all=args.all) as programs,
        open_exports(config, os.environ, live=True) as exports,
        ExitStack() as stack,
    ):
        if guard:
            guard.watch(programs.processes_fd)
        session = Session(
            programs,
            config,
            command=command,
            pids=args.pid,
            cgroup=args.cgroup,
            watch_all=args.all,
            status=lambda: {"rejected": dict(rejected), "dropped": dict(exports.dropped())},
        )
        batches: Iterator[Sequence[bytes]] = session.batches(args.duration)
        if args.record:
            batches = _record(batches, stack.enter_context(RecordingWriter(args.record)))
        console = out.stderr_console
        live = is_live(args.summary, console, shares_terminal=command is not None)
        summary = stack.enter_context(Summary(console, live=live, dropped=exports.dropped))
        observers = [exports.observe, summary.observe, _HangLog().observe]
        with _signals(session, command, config.export.shutdown_timeout_s):
            pipeline.process(batches, Enricher(), observers, rejected)
            if not exports.shutdown(config.export.shutdown_timeout_s):
                _logger.warning("not everything could be exported before the time was over")
    if args.summary != "never":
        summary.print_final()
    return command.exit_code or 0 if command else 0


def _record(
    batches: Iterator[Sequence[bytes]], writer: RecordingWriter
) -> Iterator[Sequence[bytes]]:
    recording = True
    for batch in batches:
        try:
            if recording:
                writer.write(batch)
        except RecordingError as error:
            # A full disk ends the recording, not the capture.
            recording = False
            _logger.warning("%s; the capture goes on without it", error)
        yield batch


@contextmanager
def _signals(session: Session, command: Command | None, patience_s: float) -> Iterator[None]:
    """
    Turn signals into an orderly end.

    Without a command, SIGINT and SIGTERM end the capture. With one, the terminal has
    sent SIGINT to it as well, and it decides; SIGTERM and SIGHUP are passed on, and if it
    does not end within the time, the capture ends without it.
    """
    timers: list[threading.Timer] = []

    def end(number: int, _frame: object) -> None:
        if command is None:
            session.stop()
        elif number != signal.SIGINT:
            command.send_signal(number)
            timer = threading.Timer(patience_s, session.stop)
            timer.daemon = True
            timer.start()
            timers.append(timer)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        for number, handler in previous.items():
            signal.signal(number, handler)


class _HangLog:
    """Says once of each call that it does not return, in words that an operator can search for."""

    def __init__(self) -> None:
        self._said: set[tuple[int, int, int, int]] = set()

    def observe(self, activity: Activity) -> None:
        if not isinstance(activity, OpenCallActivity):
            return
        event = activity.event
        name = (event.pid, event.tid, event.start_ktime_ns, event.depth)
        if name not in self._said:
            self._said.add(name)
            _logger.warning(
                "thread %d (%s) of %s, process %d, has been inside %s for %.1f s",
                event.tid,
                event.comm,
                activity.process.service_name,
                event.pid,
                activity.api.name,
                (activity.seen_unix_ns - activity.start_unix_ns) / 1e9,
            )
