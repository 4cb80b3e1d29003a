"""Where the flight recorder is when nobody says so."""

import os
from collections.abc import Mapping
from pathlib import Path


def default_path(environ: Mapping[str, str]) -> Path:
    """Return the file of the flight recorder: of a service, of the host, or of a user."""
    if folder := environ.get("STATE_DIRECTORY", "").split(":")[0]:
        return Path(folder) / "store.db"
    if os.geteuid() == 0:
        return Path("/var/lib/otel-gpu/store.db")
    state = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or "/") / ".local/state")
    return Path(state) / "otel-gpu" / "store.db"
