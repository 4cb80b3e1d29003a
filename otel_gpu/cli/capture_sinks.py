"""Sinks of a capture that has ended: an endpoint or a file, and a store."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from otel_gpu import pipeline
from otel_gpu.cli.commands import Output
from otel_gpu.cli.flight_recorder import open_store
from otel_gpu.config import Config
from otel_gpu.export.exports import Exports, open_exports
from otel_gpu.export.otlp.sender import DropReason
from otel_gpu.faults import Observer
from otel_gpu.recorder.losses import describe_losses
from otel_gpu.recorder.writer import StoreWriter


class CaptureSinks:
    """The export and the store of one capture. Either can be missing."""

    def __init__(self, config: Config, exports: Exports | None, store: StoreWriter | None) -> None:
        self._timeout_s = config.export.shutdown_timeout_s
        self._exports, self._store = exports, store
        sinks: list[pipeline.Sink] = []
        sinks += [] if exports is None else [exports]
        sinks += [] if store is None else [store]
        self._explain = pipeline.ExplainStage(config, *sinks)
        self.observers: list[Observer] = [*sinks, self._explain] if sinks else []

    def conclude_import(
        self, source: str, notes: Sequence[str], rejected: Mapping[str, int]
    ) -> None:
        """Store the source, the notes and the rejected records of an import, at its end."""
        if self._store is not None:
            self._store.conclude_import(source, notes, rejected)

    def close(self, out: Output) -> bool:
        """Close all sinks. Return False if anything was lost; the losses are printed."""
        self._explain.close()
        complete = True
        if self._exports is not None:
            # A flush before would send metrics twice.
            complete = self._exports.shutdown(self._timeout_s)
            dropped = Counter(self._exports.dropped())
            # The configuration leaves these out.
            del dropped[DropReason.NOT_SAMPLED]
            if dropped:
                out.note(f"spans that could not be exported: {list_counts(dropped)}")
            complete = complete and not dropped
        if self._store is not None:
            complete = self._store.close() and complete
            for sentence in describe_losses(self._store.lost()):
                out.note(sentence)
        return complete


@contextmanager
def open_sinks(
    config: Config, environ: Mapping[str, str] | None, store: Path | None
) -> Iterator[CaptureSinks]:
    """Open an export with the variables of ``environ``, and a store. None: leave that sink out."""
    with ExitStack() as stack:
        exports = None
        if environ is not None:
            exports = stack.enter_context(open_exports(config, environ, live=False))
        writer = None
        if store is not None:
            writer = stack.enter_context(open_store(store, config, live=False))
        yield CaptureSinks(config, exports, writer)


def list_counts(counts: Mapping[str, int]) -> str:
    """Return counts above 0 by name, as ``name 1, other 2``."""
    return ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()) if count)
