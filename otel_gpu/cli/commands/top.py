"""
Show what bounds each process, the time of the launching threads by state, CUDA calls, incidents as
they form, and calls that do not return. Captures live with --pid, --cgroup, --all or a command
after --, or plays a recording at its own pace. On a terminal, q quits, p pauses, s changes the sort
order of calls, and the arrows or j and k select a process. Elsewhere, screens are written one below
the other as plain text. With a command, its input and output are its own, no keys are read, and
the exit code is the command's; the screen goes to standard error, and is redrawn in place where
standard output is not that terminal.
"""

import signal
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from otel_gpu import pipeline
from otel_gpu.cli.commands import Output, UsageError, add_file
from otel_gpu.cli.display import Display
from otel_gpu.cli.keys import has_keys
from otel_gpu.cli.live_capture import Batches, exit_code_of, open_capture, signals_handled
from otel_gpu.cli.sources import RecordingSource
from otel_gpu.cli.targets import add_target_arguments, check_targets
from otel_gpu.config import Config
from otel_gpu.enrich.activities import Activity
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.faults import Faults, Isolated, Observer
from otel_gpu.report.document import Window
from otel_gpu.report.extent import CaptureExtent
from otel_gpu.report.render.text.summary import is_live
from otel_gpu.report.top.model import TopModel

CONFIG_FLAGS = ("spans.mode",)
TAKES_COMMAND = True

_NS_PER_S = 1_000_000_000
_INTERVALS_S = 0.1, 3_600.0
# A change of the system clock must not make the player wait.
_LONGEST_PAUSE_S = 60.0
_GLANCE_S = 0.05


class _Quit(Exception):  # noqa: N818 -- nothing went wrong
    pass


def add_arguments(parser: ArgumentParser) -> None:
    add_file(parser, "recording", "the recording to play", nargs="?")
    add_target_arguments(parser)
    text = "time from one screen to the next; default: 2"
    parser.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help=text)
    parser.add_argument(
        "--once",
        action="store_true",
        help="write one screen and exit: after one interval or --duration, when the command ends, "
        "or at the end of the recording",
    )


def run(args: Namespace, config: Config, out: Output) -> int:
    """Show; return the command's exit code, or 0."""
    least_s, longest_s = _INTERVALS_S
    if not least_s <= args.interval <= longest_s:
        raise UsageError(
            f"--interval must be {least_s:g} to {longest_s:,.0f} seconds, not {args.interval:g}"
        )
    if args.recording is None:
        return _watch(args, config, out)
    if args.command or args.pid or args.cgroup or args.all or args.duration or args.record:
        hint = "leave out the options of a capture, or the recording"
        raise UsageError("a recording takes no options of a capture", hint=hint)
    return _play(args, config, out)


def _watch(args: Namespace, config: Config, out: Output) -> int:
    check_targets(args)
    if args.once and args.duration is None and not args.command:
        args.duration = args.interval
    rejected: Counter[str] = Counter()
    faults = Faults()
    model = _make_model(args, config, rejected)
    with open_capture(args, config, rejected=rejected, faults=faults, is_shown=True) as (
        started,
        batches,
    ):
        console = out.stderr_console if args.command else out.stdout_console
        display = _make_display(args, model, console=console, source=_name_target(args))
        with display:
            shown = batches if args.once else _ticking(batches, display, faults)
            parts = [Isolated(faults, "top", model)]
            pipeline.process(shown, Enricher(), observers=parts, rejected=rejected, faults=faults)
        model.close()
        display.write()
    return exit_code_of(started, faults)


def _ticking(batches: Batches, display: Display, faults: Faults) -> Batches:
    has_ended = False
    for batch in batches:
        yield batch
        with faults.at("display"):
            display.tick()
        if display.has_quit and not has_ended:
            has_ended = True
            # The session then ends in order. Without a command, Ctrl-C can be ignored.
            signal.raise_signal(signal.SIGTERM)


def _play(args: Namespace, config: Config, out: Output) -> int:
    recording = RecordingSource(args.recording)
    model = _make_model(args, config, recording.rejected)
    display = _make_display(args, model, console=out.stdout_console, source=args.recording.name)
    observers: list[Observer] = [model] if args.once else [_Pace(display), model]
    # Signals act like the key q, so the terminal is restored.
    with signals_handled(lambda *_: display.quit()):
        try:
            with display:
                recording.play(Window(), observers)
                model.close()
                display.hold()
        except _Quit:
            model.close()
    display.write()
    if recording.error:
        raise recording.error
    return 0


class _Pace:
    # Delays each activity until its time in the recording.
    def __init__(self, display: Display) -> None:
        self._display = display
        self._extent = CaptureExtent()
        self._reached_unix_ns = 0
        self._due_s = self._ticked_s = time.monotonic()

    def observe(self, activity: Activity) -> None:
        self._extent.observe(activity)
        end_unix_ns = self._extent.end_unix_ns
        step_s = (end_unix_ns - (self._reached_unix_ns or end_unix_ns)) / _NS_PER_S
        self._due_s += min(max(0.0, step_s), _LONGEST_PAUSE_S)
        self._reached_unix_ns = end_unix_ns
        while self._display.is_paused or self._due_s > (now_s := time.monotonic()):
            self._tick(_GLANCE_S if self._display.is_paused else self._due_s - now_s)
        if time.monotonic() - self._ticked_s > _GLANCE_S:
            self._tick(0.0)

    def _tick(self, wait_s: float) -> None:
        began_s = time.monotonic()
        was_paused = self._display.is_paused
        self._display.tick(min(wait_s, _GLANCE_S))
        self._ticked_s = time.monotonic()
        if was_paused:
            self._due_s += self._ticked_s - began_s
        if self._display.has_quit:
            raise _Quit


def _make_model(args: Namespace, config: Config, rejected: Mapping[str, int]) -> TopModel:
    interval_ns = round(args.interval * _NS_PER_S)
    return TopModel(pipeline.bounded_settings(config), interval_ns, rejected)


def _make_display(args: Namespace, model: TopModel, console: Console, source: str) -> Display:
    # Output of the command on the same terminal would vanish with the screen.
    shares_terminal = bool(args.command) and sys.stdout.isatty()
    may_redraw = not console.is_dumb_terminal and not args.once
    can_redraw = may_redraw and is_live("auto", console, shares_terminal=shares_terminal)
    takes_keys = can_redraw and not args.command and has_keys()
    return Display(
        model=model,
        console=console,
        source=source,
        interval_s=args.interval,
        is_live=can_redraw,
        takes_keys=takes_keys,
    )


def _name_target(args: Namespace) -> str:
    if args.command:
        return " ".join([Path(args.command[0]).name, *args.command[1:]])
    if args.pid:
        return "pid " + ", ".join(map(str, args.pid))
    return f"cgroup {args.cgroup.name}" if args.cgroup else "all processes"
