"""Errors that end a command, each with a hint for the operator."""


class OtelGpuError(Exception):
    """
    An error that is shown to the operator.

    ``hint`` is what to do; the command line prints it on a line of its own.
    ``exit_code`` is the exit code of the process if nothing handles the error.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class HostError(OtelGpuError):
    """The host lacks something: privileges, BTF, libbpf."""


class BpfError(OtelGpuError):
    """libbpf reported an error; ``log`` is the output of libbpf and of the kernel's verifier."""

    def __init__(self, message: str, *, hint: str = "", log: str = "") -> None:
        super().__init__(message, hint=hint)
        self.log = log


class MapFullError(BpfError):
    """A BPF map is full."""


class RecordingError(OtelGpuError):
    """A recording is truncated, corrupt, or of an unknown version."""


class StoreError(OtelGpuError):
    """A store cannot be opened, read or written."""


class ConfigError(OtelGpuError):
    """A configuration value is unknown, malformed or contradictory."""

    exit_code = 2


class CommandError(OtelGpuError):
    """A command could not be started; exit codes are those of a shell."""

    def __init__(self, message: str, *, hint: str = "", exit_code: int = 127) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code
