"""The token of network clients."""

import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from otel_gpu.errors import OtelGpuError

VARIABLE = "OTEL_GPU_MCP_TOKEN"
MIN_LENGTH = 16

_MAX_BYTES = 4_096
_BYTES = 32
_SCHEME = "bearer "
_HINT = "name a file that holds the token"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class TokenError(OtelGpuError):
    """The token is missing or too weak."""


def find_token(file: Path | None, environ: Mapping[str, str]) -> str | None:
    """Return the operator's token, None without one; ``TokenError``: it is bad."""
    if file is not None:
        return _check(_read(file), str(file))
    if VARIABLE in environ:
        return _check(environ[VARIABLE], VARIABLE)
    return None


def new_token() -> str:
    """Return a random token."""
    return secrets.token_urlsafe(_BYTES)


def is_authorized(header: str, token: str) -> bool:
    """Return whether an ``Authorization`` header has the token, in constant time."""
    if header[: len(_SCHEME)].lower() != _SCHEME:
        return False
    given = header[len(_SCHEME) :].strip()
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def _read(file: Path) -> str:
    try:
        # A named pipe would block.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise TokenError(f"{file}: cannot be read: {error.strerror}", hint=_HINT) from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise TokenError(f"{file}: is not a file", hint=_HINT)
        if found.st_mode & _OTHERS:
            used = f"{file}: other users have access (mode {stat.S_IMODE(found.st_mode):04o})"
            raise TokenError(used, hint=f"chmod 600 {file}")
        if found.st_uid not in (0, os.geteuid()):
            raise TokenError(f"{file}: belongs to another user", hint="make a file of your own")
        return os.read(descriptor, _MAX_BYTES).decode("utf-8", "replace")
    finally:
        os.close(descriptor)


def _check(text: str, where: str) -> str:
    token = text.strip()
    if len(token) < MIN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        raise TokenError(
            f"{where}: not a token: it needs at least {MIN_LENGTH} printable ASCII characters without spaces",
            hint="python3 -c 'import secrets; print(secrets.token_urlsafe())' makes one",
        )
    return token
