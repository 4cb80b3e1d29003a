"""Arguments that name the targets of a live capture. Imports nothing of the capture itself."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from otel_gpu.capture.preload.library import library_path
from otel_gpu.cli.commands import UsageError, add_file, add_pids, check_pids


def add_target_arguments(parser: ArgumentParser, *, pid_note: str = "") -> None:
    """Add the arguments for what to watch, and for how long."""
    add_pids(parser, "watch this process and its children", pid_note)
    text = "watch the processes of this cgroup, including those that join it later"
    parser.add_argument("--cgroup", type=Path, metavar="FOLDER", help=text)
    parser.add_argument(
        "--all", action="store_true", help="watch every process that uses a CUDA library"
    )
    parser.add_argument(
        "--preload",
        action="store_true",
        help="preload a library that counts the command's hot calls, which costs it less than probes",
    )
    parser.add_argument("--duration", type=float, metavar="SECONDS", help="stop after this long")
    add_file(parser, "--record", "also write a recording, for replay and parse")


def check_targets(args: Namespace) -> None:
    """Raise ``UsageError`` unless exactly one kind of target is named, and it exists."""
    chosen = [bool(args.command), bool(args.pid), args.cgroup is not None, args.all]
    if sum(chosen) != 1:
        message = "name what to watch" if not any(chosen) else "name one kind of thing to watch"
        raise UsageError(message, hint="one of: -- COMMAND, --pid PID, --cgroup FOLDER, --all")
    if args.preload and not args.command:
        raise UsageError(
            "--preload needs a command, and none was given",
            hint=f"start other programs with LD_PRELOAD={library_path()}",
        )
    check_pids(args.pid)
    if args.cgroup is not None and not (args.cgroup / "cgroup.procs").exists():
        raise UsageError(f"{args.cgroup} is not a cgroup", hint="give its folder in /sys/fs/cgroup")
    if args.duration is not None and args.duration <= 0:
        raise UsageError(f"--duration must be more than 0 seconds, not {args.duration:g}")
