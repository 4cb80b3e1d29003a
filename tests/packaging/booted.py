"""
A real systemd that runs here as the first process of its own namespaces.

It sees a clean host (see ``clean_host.py``): its own pids, mounts, host name and part of the
cgroup tree, and this host's network. It starts nothing by itself, and what it runs under a unit
runs with everything that the unit says: users, capabilities, mounts, system calls, limits.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Self

from tests.kernel.agent import wait_until
from tests.packaging.clean_host import CleanHost

SYSTEMD = Path("/usr/lib/systemd/systemd")
JOURNAL = ("systemd-journald.service", "systemd-journald.socket", "systemd-journald-dev-log.socket")
# Targets that units name. Empty, so that nothing of this host is started with them.
TARGETS = ("sysinit", "basic", "shutdown", "network-online", "multi-user", "sockets", "default")
CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = ("memory", "cpu", "cpuacct", "pids", "devices", "systemd", "unified")
SCRIPT = """
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=755 none /run
mkdir -p /run/units /run/systemd/journald.conf.d
for target in $TARGETS; do
	printf '[Unit]\\nDefaultDependencies=no\\n' > "/run/units/$target.target"
done
for unit in $JOURNAL; do
	[ ! -e "/usr/lib/systemd/system/$unit" ] || cp "/usr/lib/systemd/system/$unit" /run/units/
done
printf '[Journal]\\nStorage=volatile\\nForwardToSyslog=no\\nReadKMsg=no\\n' > /run/systemd/journald.conf.d/a.conf
mount -t tmpfs -o mode=755 none /etc/systemd/system
mount -t proc proc /proc
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
	mount -t cgroup2 cgroup2 /sys/fs/cgroup
else
	umount -l /sys/fs/cgroup
	mount -t tmpfs -o mode=755 none /sys/fs/cgroup
	for name in $HIERARCHIES; do
		mkdir "/sys/fs/cgroup/$name"
		case $name in
		unified) mount -t cgroup2 cgroup2 "/sys/fs/cgroup/$name" ;;
		systemd) mount -t cgroup -o none,name=systemd cgroup "/sys/fs/cgroup/$name" ;;
		*) mount -t cgroup -o "$name" cgroup "/sys/fs/cgroup/$name" ;;
		esac
	done
fi
exec env -i container=otel-gpu-test PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \\
	SYSTEMD_UNIT_PATH=/run/units:/etc/systemd/system \\
	"$SYSTEMD" --system --unit=default.target --log-target=journal-or-kmsg --show-status=no
"""
NAMESPACES = ("--mount", "--pid", "--uts", "--ipc", "--cgroup")


class Booted:
    """
    The running systemd, as a context manager that leaves no process and no cgroup behind.

    Args:
        host: Where it runs.

    Attributes:
        pid: systemd's, as this host counts.
    """

    def __init__(self, host: CleanHost) -> None:
        self.pid = 0
        self._host = host
        self._groups = [group / f"otel-gpu-test-{os.getpid()}" for group in hierarchies()]
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        for group in self._groups:
            group.mkdir()
        environment = os.environ | {
            "TARGETS": " ".join(TARGETS),
            "JOURNAL": " ".join(JOURNAL),
            "HIERARCHIES": " ".join(group.parent.name for group in self._groups),
            "SYSTEMD": str(SYSTEMD),
        }
        # The cgroups that it is in when the namespace is made are the namespace's roots.
        join = "".join(f"echo $$ > {group}/cgroup.procs\n" for group in self._groups)
        inner = ["unshare", *NAMESPACES, "--fork", "--kill-child", "sh", "-c", SCRIPT]
        self._process = subprocess.Popen(
            ["sh", "-euc", f'{join}exec "$@"', "sh", *self._host.inside(*inner)],
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            wait_until(self._find, "the start of systemd", 30)
            wait_until(self._answers, "an answer of systemd", 60)
            self.systemctl("start", "systemd-journald.service")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for group in self._groups:
            remove_group(group)

    def _find(self) -> bool:
        tasks = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        for pid in tasks.read_text(encoding="ascii").split():
            if Path(f"/proc/{pid}/comm").read_text(encoding="ascii").startswith("systemd"):
                self.pid = int(pid)
        assert self._process.poll() is None, "systemd did not start"
        return bool(self.pid)

    def _answers(self) -> bool:
        done = self.run("systemctl", "is-system-running", check=False)
        return done.stdout.strip() in {"running", "degraded"}

    def inside(self, *command: str | Path) -> list[str]:
        """Return the command line that runs a command beside systemd, as root."""
        nsenter = shutil.which("nsenter") or "nsenter"
        flags = ("--mount", "--pid", "--uts", "--ipc", "--cgroup", "--wd=/")
        return [nsenter, "--target", str(self.pid), *flags, *map(str, command)]

    def run(self, *command: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command beside systemd; its output is text."""
        return subprocess.run(
            self.inside(*command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=check,
            timeout=60,
        )

    def systemctl(self, *arguments: str) -> str:
        """Return what systemctl says; raises with the unit's journal when it fails."""
        done = self.run("systemctl", "--no-pager", *arguments, check=False)
        if done.returncode:
            raise AssertionError(f"{done.stdout}{done.stderr}\n{self.journal(arguments[-1])}")
        return done.stdout

    def show(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self.systemctl("show", "--value", f"--property={name}", unit).strip()

    def journal(self, unit: str) -> str:
        """Return what a unit wrote to the journal."""
        flags = ("--no-pager", "--quiet", "--output=cat", "--directory=/run/log/journal")
        return self.run("journalctl", *flags, f"--unit={unit}", check=False).stdout


def hierarchies() -> list[Path]:
    """Return the cgroup hierarchies that systemd gets a part of: one, or one for each controller."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [CGROUPS / name for name in CONTROLLERS if (CGROUPS / name).is_dir()]


def remove_group(group: Path) -> None:
    """Remove a cgroup and those below it, when the last process in them has ended."""
    for folder in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
        remove_group(folder)
    if group.exists():
        wait_until(lambda: not (group / "cgroup.procs").read_text(), f"the end of {group}")
        group.rmdir()
