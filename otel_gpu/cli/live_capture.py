"""What the verbs that capture live have in common: how a capture begins, and how it ends."""

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
from typing import Any, NamedTuple

from otel_gpu.capture.bpf.programs import Programs
from otel_gpu.capture.host.clocks import allow_open_files, collect_no_more, collect_rarely
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

# Process images, files that they map, files with their symbols, and up to ten links for each file with
# probes, each within bounds. Who could use them all up would keep others' files from being read.
_OPEN_FILES = 65_536

_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
# A terminal sends these to all that it runs.
_OF_TERMINAL = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH})
# They are about the agent itself: its errors and its own writes, its children, and when it may run.
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
    """The user's command at its gate, and who watches over it; neither without a command."""

    command: Command | None
    guard: StopGuard | None


@contextmanager
def start_command(
    args: Namespace, config: Config, written: Iterable[Path] = ()
) -> Iterator[Started]:
    """
    Fork the user's command, if there is one, and hold it at its gate; then give up privileges.

    To be called before anything else: a fork is cheapest, and safest, from a process with little
    memory and one thread, and capabilities are of threads. ``written`` are files that will be
    written, beside those that the command line names. Once the command runs, it outlives the agent's errors: what goes wrong
    in the context is logged, and the context ends without it when the command has ended.
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
            # A shell has background commands of a script ignore it, and a capture has no other end.
            stack.enter_context(signals_handled(numbers={signal.SIGINT}))
            signal.signal(signal.SIGINT, signal.default_int_handler)
        # After the fork: the limit, and the nice value, are none of the command's.
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
            _logger.error(  # noqa: TRY400 -- a bug of ours has a traceback, and nothing else
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
    """Load the programs of the kernel side."""
    # Not before the user's command was forked, whose limit it is not.
    allow_open_files(_OPEN_FILES)
    # A command is watched before it does anything, and so are its children.
    looks = bool(args.all or args.pid or args.cgroup)
    with Programs(config, watch_all=args.all, looks=looks) as programs:
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
    status: Callable[[], Mapping[str, Any]],
    faults: Faults,
    *,
    is_shown: bool = False,
) -> Iterator[Batches]:
    """
    Begin to capture, and yield the batches of records; ``--record`` is seen to.

    While the context is open, signals end the capture in good order. A service manager is
    notified when the capture begins, and with each batch.
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
        # With a command, a service manager is interested in the command.
        if started.command is None:
            notifier = Notifier(os.environ)
            stack.callback(notifier.stop)
            if notifier.is_watched:
                # The watchdog's SIGABRT leaves a word on where the agent hung.
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
    """Begin a capture that exports nothing: command, programs, session."""
    with (
        start_command(args, config) as started,
        load_programs(args, config, started) as programs,
        open_session(
            args,
            config,
            programs,
            started,
            lambda: {"rejected": dict(rejected)},
            faults,
            is_shown=is_shown,
        ) as batches,
    ):
        yield started, batches


def exit_code_of(started: Started, faults: Faults) -> int:
    """Return the command's exit code; without one, 0, or 1 if a part was switched off for its errors."""
    # Once more, for who looks at the end first.
    if found := faults.summary():
        _logger.warning("errors inside the agent cost some of what was captured: %s", found)
    if started.command is not None:
        return started.command.exit_code or 0
    return int(faults.cost_a_part)


def _notify(batches: Batches, notifier: Notifier, faults: Faults) -> Batches:
    for batch in batches:
        notifier.turn(lambda: faults.summary() or CAPTURING)
        yield batch


def _record(batches: Batches, writer: RecordingWriter, faults: Faults) -> Batches:
    recording = True
    for batch in batches:
        try:
            if recording:
                writer.write(batch)
        except RecordingError as error:
            # A full disk ends the recording, not the capture.
            recording = False
            _logger.warning("%s; the capture goes on without it", error)
        except Exception as error:  # noqa: BLE001 -- nor does an error of ours
            faults.add("recording", error)
        yield batch


@contextmanager
def _signals(session: Session, command: Command | None, patience_s: float) -> Iterator[None]:
    """
    Turn signals into an orderly end.

    Without a command, SIGINT and SIGTERM end the capture. With one they are passed on to it, but
    for SIGINT of a terminal, which has sent it to the command as well. The command decides what
    they mean; if it does not end in time after SIGTERM or SIGHUP, the capture ends without it. A
    signal that the caller ignores, as under ``nohup``, stays ignored, by the command too.
    """
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
        # What is left to do may take long, and the command may outlive it.
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
    """Have signals handled, by default those that end us, but for ignored ones; then as before."""
    previous = {number: signal.getsignal(number) for number in numbers}
    if handler:
        _handle_signals(handler, numbers)
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
