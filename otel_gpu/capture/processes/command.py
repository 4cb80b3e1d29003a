"""
Starts the user's command, which waits until the probes are placed.

The command is forked first, while the agent is small and has one thread. It waits at a gate: a pipe that
the agent writes to when everything is ready. It inherits standard input, output and signal dispositions as
the agent got them.
"""

import contextlib
import errno
import os
import shutil
import signal
from collections.abc import Mapping, Sequence

from otel_gpu.errors import CommandError

NOT_FOUND = 127
NOT_EXECUTABLE = 126
_SIGNAL_BASE = 128
_INIT = 1


class Command:
    """
    The user's command.

    Attributes:
        has_begun: Whether its exec succeeded.

    Raises:
        CommandError: The program does not exist, or is not executable.
    """

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str] = os.environ
    ) -> None:
        self.arguments = list(arguments)
        self._environment = environment
        name = self.arguments[0]
        found = shutil.which(name, mode=os.F_OK)
        if found is None:
            raise CommandError(
                f"{name}: command not found",
                hint="check the spelling, or give its path",
                exit_code=NOT_FOUND,
            )
        if shutil.which(name) is None:
            raise CommandError(
                f"{found}: not executable",
                hint=f"chmod +x {found}, or name its interpreter",
                exit_code=NOT_EXECUTABLE,
            )
        gate_read, self._gate = os.pipe2(os.O_CLOEXEC)
        self._failure, failure_write = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if not self.pid:
            os.close(self._gate)
            self._become(gate_read, failure_write)
        os.close(gate_read)
        os.close(failure_write)
        self.pid_fd = os.pidfd_open(self.pid)
        self.exit_code: int | None = None
        self.has_begun = False
        self._held_signals: list[int] = []

    def _become(self, gate_read: int, failure_write: int) -> None:
        # In the child. An empty read: the agent died before the gate was opened.
        try:
            if not os.read(gate_read, 1):
                os._exit(1)
            # Python ignores these; the command expects the defaults.
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            # S606: it is the user's own command.
            os.execvpe(self.arguments[0], self.arguments, self._environment)  # noqa: S606
        except OSError as error:
            os.write(failure_write, str(error.errno).encode())
        finally:
            os._exit(NOT_EXECUTABLE)

    def open_gate(self) -> None:
        """
        Let the command execute its program.
        """
        os.write(self._gate, b"1")
        os.close(self._gate)
        self._gate = -1

    def check_started(self) -> None:
        """
        Wait until the command has executed its program.

        Raises:
            CommandError: The kernel did not execute it.
        """
        failure = os.read(self._failure, 16)
        os.close(self._failure)
        self._failure = -1
        if failure:
            number = int(failure)
            hint = "it needs an interpreter line (#!), or is for another machine"
            raise CommandError(
                f"{self.arguments[0]}: {os.strerror(number)}",
                hint=hint if number == errno.ENOEXEC else "check the file and its permissions",
                exit_code=NOT_FOUND if number == errno.ENOENT else NOT_EXECUTABLE,
            )
        self.has_begun = True
        for number in self._held_signals:
            self.send_signal(number)

    def send_signal(self, number: int) -> None:
        """Forward a signal to the command if it runs; before its exec, the signal is kept for it."""
        if not self.has_begun:
            self._held_signals.append(number)
        elif self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pid_fd, number)

    def gets_signals_of_terminal(self) -> bool:
        """Whether the terminal sends signals such as Ctrl-C to the command as well as to the agent."""
        try:
            terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return os.tcgetpgrp(terminal) == os.getpgrp() == os.getpgid(self.pid)
        except OSError:
            return False
        finally:
            os.close(terminal)

    def poll(self) -> int | None:
        """Return the exit code as in a shell; None while the command runs."""
        if self.exit_code is None:
            self._take_in(*os.waitpid(self.pid, os.WNOHANG))
        return self.exit_code

    def wait(self) -> None:
        """Wait until the command has ended."""
        while self.exit_code is None:
            self._take_in(*os.waitpid(-1, 0))

    def _take_in(self, pid: int, status: int) -> None:
        if pid == self.pid:
            code = os.waitstatus_to_exitcode(status)
            self.exit_code = code if code >= 0 else _SIGNAL_BASE - code

    def close(self) -> None:
        """Close the descriptors. A command that still waits at the gate ends; a running one continues."""
        for fd in (self._gate, self.pid_fd, self._failure):
            with contextlib.suppress(OSError):
                os.close(fd)


def reap_orphans(command: Command | None) -> None:
    """
    Reap orphaned processes if the agent is process 1, as in a container; not the command.
    """
    if os.getpid() != _INIT:
        return
    own = command.pid if command and command.exit_code is None else 0
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == own:
                break
            os.waitpid(ended.si_pid, 0)
