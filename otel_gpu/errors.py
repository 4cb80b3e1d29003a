"""The ways in which otel_gpu gives up, each with a hint for the operator."""


class OtelGpuError(Exception):
    """
    Something the operator has to know about.

    ``hint`` says what to do; the command line prints it on a line of its own.
    ``exit_code`` is what the process ends with when nothing handles the error.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class HostError(OtelGpuError):
    """This host cannot do what was asked: no privileges, no BTF, no libbpf."""


class BpfError(OtelGpuError):
    """libbpf refused something; ``log`` is what it and the kernel's verifier printed about it."""

    def __init__(self, message: str, *, hint: str = "", log: str = "") -> None:
        super().__init__(message, hint=hint)
        self.log = log


class MapFullError(BpfError):
    """There is no room for another key in a map of the kernel side."""


class RecordingError(OtelGpuError):
    """A recording is truncated, corrupt, or of a version that is not known."""


class StoreError(OtelGpuError):
    """A store cannot be opened, read or written."""


class ConfigError(OtelGpuError):
    """A configuration value is unknown, malformed or contradictory."""

    exit_code = 2


class CommandError(OtelGpuError):
    """The command to run could not be started; exit codes as a shell's."""

    def __init__(self, message: str, *, hint: str = "", exit_code: int = 127) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code
