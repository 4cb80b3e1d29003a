"""A live capture as a source of ``explain`` and ``stacks``."""

from argparse import Namespace
from collections.abc import Sequence

from otel_gpu import pipeline
from otel_gpu.cli.commands import Output, UsageError
from otel_gpu.cli.part_reports import find_source
from otel_gpu.cli.targets import check_targets
from otel_gpu.config import Config
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.faults import Faults, Isolated
from otel_gpu.report.document import Window
from otel_gpu.report.source import Observers, Source


class LiveSource(Source):
    """
    A capture that starts when it is played, and exports nothing.

    ``done`` completes the note "Ctrl-C ends that and …", printed without a command.
    """

    def __init__(self, args: Namespace, config: Config, out: Output, done: str) -> None:
        if args.begin is not None or args.end is not None:
            raise UsageError("--from and --to are for recordings and stores", hint="see --duration")
        check_targets(args)
        super().__init__("live")
        self._args, self._config, self._out, self._done = args, config, out, done

    def play(self, window: Window, observers: Observers) -> None:  # noqa: ARG002 -- it has no end
        """Capture until it ends, and pass all activities to the observers."""
        # A quarter of the start time, which recordings do not need.
        from otel_gpu.cli.live_capture import exit_code_of, open_capture  # noqa: PLC0415

        faults = Faults()
        with open_capture(self._args, self._config, rejected=self.rejected, faults=faults) as (
            started,
            batches,
        ):
            if started.command is None:
                self._out.note(f"capturing; Ctrl-C ends that and {self._done}")
            parts = [Isolated(faults, "report", observer) for observer in observers]
            pipeline.process(
                batches, Enricher(), observers=parts, rejected=self.rejected, faults=faults
            )
        self.exit_code = exit_code_of(started, faults)


def find_source_or_capture(
    args: Namespace, config: Config, out: Output, *, handled: str, done: str
) -> Source:
    """
    Return the source that the command line names: a recording, a store or a capture.

    ``handled`` completes the error "a recording is … as it is"; ``done`` see ``LiveSource``.
    """
    captures = args.command or args.cgroup or args.all or args.duration is not None or args.record
    is_named = args.recording is not None or args.store is not None
    if captures and is_named:
        named = "recording" if args.store is None else "store"
        hint = "leave out the options of a capture, or the file"
        raise UsageError(f"a {named} is {handled} as it is", hint=hint)
    reads = is_named or not (captures or args.pid)
    return (find_source(args, config) if reads else None) or LiveSource(
        args, config, out=out, done=done
    )


def pids_of(source: Source, args: Namespace) -> Sequence[int]:
    """Return the processes to report. A capture reports all that it watched: no restriction."""
    return () if isinstance(source, LiveSource) else args.pid
