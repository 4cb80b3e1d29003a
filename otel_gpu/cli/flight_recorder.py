"""The path of the flight recorder, when a capture writes one, and how it is opened."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from otel_gpu.config import Config
from otel_gpu.errors import StoreError
from otel_gpu.faults import Faults, Isolated
from otel_gpu.options import StoreUse
from otel_gpu.recorder.limits import StoreLimits
from otel_gpu.recorder.losses import describe_losses

if TYPE_CHECKING:
    from otel_gpu.recorder.writer import StoreWriter

# Setting any of these, even to "none", chooses where telemetry goes.
DESTINATIONS = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_METRICS_EXPORTER",
    "OTEL_TRACES_EXPORTER",
)
_S_PER_H = 3_600.0

_logger = logging.getLogger(__name__)


def default_path(environ: Mapping[str, str]) -> Path:
    """Return the default file: that of the service, of root, or of a user."""
    # systemd sets it to the folder of the service.
    if folder := environ.get("STATE_DIRECTORY", "").split(":")[0]:
        return Path(folder) / "store.db"
    if os.geteuid() == 0:
        return Path("/var/lib/otel-gpu/store.db")
    state = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or "/") / ".local/state")
    return Path(state) / "otel-gpu" / "store.db"


def store_path(config: Config) -> Path:
    """Return the configured store, or the default one."""
    return Path(config.store.path) if config.store.path else default_path(os.environ)


def has_destination(config: Config) -> bool:
    """Return whether the configuration or the environment names a destination of telemetry."""
    return bool(config.export.otlp_file) or any(map(os.environ.get, DESTINATIONS))


def limits_of(config: Config) -> StoreLimits:
    """Return the configured limits of a store."""
    return StoreLimits(
        max_bytes=config.store.max_bytes, max_age_s=config.store.max_age_h * _S_PER_H
    )


def wants_store(config: Config) -> bool:
    """Return whether a capture writes a flight recorder."""
    if config.store.enabled == StoreUse.AUTO:
        return config.store.path is not None or not has_destination(config)
    return config.store.enabled == StoreUse.ON


def telemetry_files(config: Config) -> Iterator[Path]:
    """Yield the files into which a capture writes telemetry."""
    if config.export.otlp_file not in {None, "-"}:
        yield Path(config.export.otlp_file)
    if wants_store(config):
        yield store_path(config)


def open_store(
    path: Path, config: Config, *, live: bool, faults: Faults | None = None
) -> "StoreWriter":
    """Open a store for writing; raise ``StoreError`` if that fails."""
    # Imports SQLite and the schema.
    from otel_gpu.recorder.recorder import open_writer  # noqa: PLC0415

    return open_writer(path, limits_of(config), live=live, faults=faults)


@contextmanager
def live_store(config: Config, faults: Faults) -> Iterator["Isolated[StoreWriter] | None"]:
    """Open the flight recorder of a capture. None: none is wanted, or it failed, which is logged."""
    store = None
    if wants_store(config):
        try:
            writer = open_store(store_path(config), config, live=True, faults=faults)
            store = Isolated(
                faults, place="store", part=writer, renew=lambda broken: broken.renew()
            )
        except StoreError as error:
            hint = f" ({error.hint})" if error.hint else ""
            _logger.warning("%s; the capture goes on without a store%s", error, hint)
    try:
        yield store
    finally:
        if store is not None:
            with faults.at("store"):
                _close(store.part)


def _close(store: "StoreWriter") -> None:
    complete = store.close()
    for sentence in describe_losses(store.lost()):
        _logger.warning("%s", sentence)
    if not complete and not store.lost():
        _logger.warning("the disk was too slow for the last rows of the store")
