"""
What the verbs that capture live have in common: what to watch, and how it ends.

Not a verb: ``run``, ``explain`` and ``stacks`` are.
"""

import logging
import signal
import threading
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from otel_gpu import pipeline
from otel_gpu.capture.command import Command
from otel_gpu.capture.guard import Guard
from otel_gpu.capture.host import allow_open_files, collect_rarely
from otel_gpu.capture.programs import Programs
from otel_gpu.capture.recording import RecordingWriter
from otel_gpu.capture.session import Session
from otel_gpu.commands import UsageError
from otel_gpu.config import Config
from otel_gpu.enrich.activities import Activity
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.errors import RecordingError

# Process images, files that they map, and files with their symbols, each within bounds.
_OPEN_FILES = 4096

_logger = logging.getLogger(__name__)

Batches = Iterator[Sequence[bytes]]


class Started(NamedTuple):
    """The user's command at its gate, and who watches over it; neither without a command."""

    command: Command | None
    guard: Guard | None


def add_target_arguments(parser: ArgumentParser, *, pid_note: str = "") -> None:
    """
    Add the arguments that say what to watch, and for how long.

    ``pid_note`` is what else the help of ``--pid`` says.
    """
    parser.add_argument(
        "--pid",
        type=int,
        action="append",
        default=[],
        metavar="PID",
        help=f"watch this process and its children; may be repeated{pid_note}",
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


def check_targets(args: Namespace) -> None:
    """
    Refuse what cannot be watched.

    Raises:
        UsageError: Nothing, or more than one kind of thing, is named; or what is named
            does not exist.
    """
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


@contextmanager
def start_command(args: Namespace) -> Iterator[Started]:
    """
    Fork the user's command, if there is one, and hold it at its gate.

    To be called before anything else: a fork is cheapest, and safest, from a process
    with little memory and one thread.
    """
    with ExitStack() as stack:
        command = guard = None
        if args.command:
            guard = Guard()
            stack.callback(guard.dismiss)
            command = Command(args.command)
            stack.callback(command.close)
        yield Started(command, guard)


@contextmanager
def load_programs(args: Namespace, config: Config, started: Started) -> Iterator[Programs]:
    """Load the programs of the kernel side."""
    # Not before the user's command was forked, whose limit it is not.
    allow_open_files(_OPEN_FILES)
    with Programs(config, watch_all=args.all) as programs:
        if started.guard:
            started.guard.watch(programs.processes_fd)
        collect_rarely()
        yield programs


@contextmanager
def open_session(
    args: Namespace,
    config: Config,
    programs: Programs,
    started: Started,
    status: Callable[[], Mapping[str, Any]],
) -> Iterator[Batches]:
    """
    Begin to capture, and yield the batches of records; ``--record`` is seen to.

    While the context is open, signals end the capture in good order.
    """
    session = Session(
        programs,
        config,
        command=started.command,
        pids=args.pid,
        cgroup=args.cgroup,
        watch_all=args.all,
        status=status,
    )
    with ExitStack() as stack:
        batches: Batches = session.batches(args.duration)
        if args.record:
            batches = _record(batches, stack.enter_context(RecordingWriter(args.record)))
        stack.enter_context(_signals(session, started.command, config.export.shutdown_timeout_s))
        yield batches


@contextmanager
def open_capture(
    args: Namespace, config: Config, rejected: Counter[str]
) -> Iterator[tuple[Started, Batches]]:
    """
    Begin a capture that exports nothing: start the command, load the programs, open the session.

    Args:
        args: What to watch, and for how long.
        config: The configuration.
        rejected: Records that could not be decoded, by reason; told in the stream.
    """

    def status() -> Mapping[str, Any]:
        return {"rejected": dict(rejected)}

    with (
        start_command(args) as started,
        load_programs(args, config, started) as programs,
        open_session(args, config, programs, started, status) as batches,
    ):
        yield started, batches


def capture(
    args: Namespace,
    config: Config,
    observe: Callable[[Activity], object],
    rejected: Counter[str],
    begun: Callable[[], None],
) -> int:
    """
    Capture until it is over, export nothing, and hand every activity to ``observe``.

    Args:
        args: What to watch, and for how long.
        config: The configuration.
        observe: Sees every activity, in order.
        rejected: Counts records that could not be decoded, by reason.
        begun: Called when the capture begins, if there is no command to be waited for.

    Returns:
        The command's exit code, or 0.
    """
    with open_capture(args, config, rejected) as (started, batches):
        if started.command is None:
            begun()
        pipeline.process(batches, Enricher(), [observe], rejected)
    return exit_code_of(started)


def exit_code_of(started: Started) -> int:
    """The command's exit code, or 0."""
    return started.command.exit_code or 0 if started.command else 0


def _record(batches: Batches, writer: RecordingWriter) -> Batches:
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
