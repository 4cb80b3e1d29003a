"""Start and end of a live capture, for all verbs that make one."""

import faulthandler
import logging
import os
import signal
import threading
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from otel_gpu.capture.bpf.programs import Programs
from otel_gpu.capture.host.host_facts import allow_open_files, collect_no_more, collect_rarely
from otel_gpu.capture.preload.library import with_preload
from otel_gpu.capture.priority import NICE_CAPABILITIES, allow_return
from otel_gpu.capture.privileges import (
    CAPTURE_CAPABILITIES,
    COMMAND_CAPABILITIES,
    give_up_privileges,
)
from otel_gpu.capture.processes.command import Command
from otel_gpu.capture.processes.inherited import given_environment
from otel_gpu.capture.processes.stop_guard import StopGuard
from otel_gpu.capture.recording import RecordingWriter
from otel_gpu.capture.session import Session
from otel_gpu.cli.commands import written_files
from otel_gpu.cli.service.notify import CAPTURING, Notifier
from otel_gpu.config import Config
from otel_gpu.errors import OtelGpuError, RecordingError
from otel_gpu.faults import Faults
from otel_gpu.procfs.capabilities import effective_capabilities

# Programs, mapped files, symbol files, and up to ten links for each file with probes; each is bounded.
# A process that used up all of them would keep the files of others from being read.
_OPEN_FILES = 65_536

_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
# A terminal sends these to all processes of its foreground.
_OF_TERMINAL = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH})
# These concern the agent itself: its errors and writes, its children, its stops.
_OWN = frozenset(
    {
        *(signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL),
        *(signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP),
        *(signal.SIGPIPE, signal.SIGXFSZ),
        signal.SIGCHLD,
        *(signal.SIGCONT, signal.SIGKILL, signal.SIGSTOP),
        *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
    }
)
_PASSED_ON = frozenset(signal.valid_signals()) - _OWN

_logger = logging.getLogger(__name__)

Batches = Iterator[Sequence[bytes]]
Handler = Callable[[int, FrameType | None], object]


class Started(NamedTuple):
    """The user's command, which waits to be executed, and its stop guard. None without a command."""

    command: Command | None
    guard: StopGuard | None


@contextmanager
def start_command(
    args: Namespace, config: Config, written: Iterable[Path] = ()
) -> Iterator[Started]:
    """
    Fork the user's command, if there is one, make it wait before its exec, then drop privileges.

    Call it first: a fork is cheapest and safest from a process with little memory and one thread,
    and capabilities belong to threads. ``written`` are files to be written beside those of the
    command line. Once the command runs, it outlives errors of the agent: an error in the context is
    logged, and the context ends normally after the command.
    """
    with ExitStack() as stack:
        command = guard = None
        if args.command:
            environment = given_environment()
            if args.preload:
                environment = with_preload(environment)
            guard = StopGuard(drops_privileges=config.capture.drop_privileges)
            stack.callback(guard.dismiss)
            command = Command(args.command, environment)
            stack.callback(command.close)
            stack.enter_context(signals_handled())
            pass_on = _passing_on_to(command)
            stack.enter_context(signals_handled(pass_on, _PASSED_ON - _ENDING))
        elif signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # Background commands of a script ignore it, and nothing else ends a capture.
            stack.enter_context(signals_handled(numbers={signal.SIGINT}))
            signal.signal(signal.SIGINT, signal.default_int_handler)
        # After the fork, so the limit and the nice value do not apply to the command.
        can_return = not config.capture.nice or allow_return()
        if config.capture.drop_privileges:
            needed = CAPTURE_CAPABILITIES | (COMMAND_CAPABILITIES if command else frozenset())
            needed |= frozenset() if can_return else NICE_CAPABILITIES
            give_up_privileges(needed, [*written_files(args), *written])
        _logger.info("capabilities: %s", ", ".join(effective_capabilities(os.getpid()) or ()))
        try:
            yield Started(command, guard)
        except Exception as error:
            if command is None or guard is None or not command.has_begun:
                raise
            hint = getattr(error, "hint", "")
            _logger.error(  # noqa: TRY400 -- only a bug of ours has a traceback
                "the capture failed, and the command goes on without it: %s: %s%s",
                type(error).__name__,
                error,
                hint and f" ({hint})",
                exc_info=None if isinstance(error, OtelGpuError) else error,
            )
            guard.let_go_on()
            _handle_signals(_passing_on_to(command))
            command.wait()


def _passing_on_to(command: Command) -> Handler:
    def pass_on(number: int, _frame: object) -> None:
        if number not in _OF_TERMINAL or not command.gets_signals_of_terminal():
            command.send_signal(number)

    return pass_on


@contextmanager
def load_programs(args: Namespace, config: Config, started: Started) -> Iterator[Programs]:
    """Load the BPF programs."""
    # After the fork of the command, which keeps its own limit.
    allow_open_files(_OPEN_FILES)
    # A command and its children are watched from their start.
    thread_dumps = bool(args.all or args.pid or args.cgroup)
    with Programs(config, watch_all=args.all, thread_dumps=thread_dumps) as programs:
        if started.guard:
            started.guard.watch(programs.processes.fd)
        collect_rarely()
        yield programs


@contextmanager
def open_session(
    args: Namespace,
    config: Config,
    programs: Programs,
    started: Started,
    status: Callable[[], Mapping[str, object]],
    faults: Faults,
    *,
    is_shown: bool = False,
) -> Iterator[Batches]:
    """
    Start the capture and yield its batches of records, also writing them for ``--record``.

    While the context is open, signals end the capture in order. A service manager is notified when
    the capture begins, and with each batch.
    """
    targets = {"pids": args.pid, "cgroup": args.cgroup, "watch_all": args.all}
    session = Session(
        programs,
        config,
        command=started.command,
        **targets,
        status=status,
        faults=faults,
        is_shown=is_shown,
    )
    with ExitStack() as stack:
        batches: Batches = session.batches(args.duration)
        if args.record:
            writer = stack.enter_context(RecordingWriter(args.record))
            batches = _record(batches, writer, faults)
        # With a command, a service manager watches the command.
        if started.command is None:
            notifier = Notifier(os.environ)
            stack.callback(notifier.stop)
            if notifier.is_watched:
                # On the watchdog's SIGABRT, print where the agent hung.
                faulthandler.enable()
            batches = _notify(batches, notifier, faults)
        stack.enter_context(_signals(session, started.command, config.export.shutdown_timeout_s))
        yield batches


@contextmanager
def open_capture(
    args: Namespace,
    config: Config,
    rejected: Counter[str],
    faults: Faults,
    *,
    is_shown: bool = False,
) -> Iterator[tuple[Started, Batches]]:
    """Start a capture that exports nothing: command, BPF programs, session."""
    with (
        start_command(args, config) as started,
        load_programs(args, config, started) as programs,
        open_session(
            args,
            config,
            programs=programs,
            started=started,
            status=lambda: {"rejected": dict(rejected)},
            faults=faults,
            is_shown=is_shown,
        ) as batches,
    ):
        yield started, batches


def exit_code_of(started: Started, faults: Faults) -> int:
    """Return the command's exit code. Without a command: 1 if errors switched off a part, else 0."""
    # Repeated here for readers of the end of a log.
    if found := faults.summary():
        _logger.warning("errors inside the agent cost some of what was captured: %s", found)
    if started.command is not None:
        return started.command.exit_code or 0
    return int(faults.cost_a_part)


def _notify(batches: Batches, notifier: Notifier, faults: Faults) -> Batches:
    for batch in batches:
        notifier.notify(lambda: faults.summary() or CAPTURING)
        yield batch


def _record(batches: Batches, writer: RecordingWriter, faults: Faults) -> Batches:
    recording = True
    for batch in batches:
        try:
            if recording:
                writer.write(batch)
        except RecordingError as error:
            # A full disk ends only the recording.
            recording = False
            _logger.warning("%s; the capture goes on without it", error)
        except Exception as error:  # noqa: BLE001 -- an error of ours does not end the capture either
            faults.add("recording", error)
        yield batch


@contextmanager
def _signals(session: Session, command: Command | None, patience_s: float) -> Iterator[None]:
    # Without a command, SIGINT and SIGTERM end the capture. With a command, they are passed on to it,
    # except SIGINT of a terminal, which also sends it to the command. The command decides what they
    # mean. If it does not end in time after SIGTERM or SIGHUP, the capture ends without it. Signals
    # that the caller ignores, as under ``nohup``, stay ignored, also by the command.
    timers: list[threading.Timer] = []

    def end(number: int, frame: FrameType | None) -> None:
        if command is None:
            collect_no_more()
            session.stop()
            return
        _passing_on_to(command)(number, frame)
        if number != signal.SIGINT:
            timers.append(threading.Timer(patience_s, session.stop))
            timers[-1].daemon = True
            timers[-1].start()

    try:
        with signals_handled(end):
            yield
    finally:
        for timer in timers:
            timer.cancel()
        # The rest can take long, and the command can outlive it.
        if command is not None and command.poll() is None:
            _handle_signals(_passing_on_to(command))


def _handle_signals(handler: Handler, numbers: Iterable[int] = _ENDING) -> None:
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


@contextmanager
def signals_handled(
    handler: Handler | None = None, numbers: Iterable[int] = _ENDING
) -> Iterator[None]:
    """Set a handler for signals that are not ignored, by default the ending ones; restore later."""
    previous = {number: signal.getsignal(number) for number in numbers}
    if handler:
        _handle_signals(handler, numbers)
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
