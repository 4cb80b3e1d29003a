"""The command line: verbs, exit codes, and what goes where."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import otel_gpu
from otel_gpu import cli
from otel_gpu.cli import commands
from otel_gpu.errors import BpfError, CommandError, HostError


class Verb(SimpleNamespace):
    """A verb that notes what it was given and does what the test says."""

    def __init__(self, do=lambda *_: 0, **names):
        super().__init__(do=do, **names)

    def add_arguments(self, parser):
        parser.add_argument("--depth", type=int)

    def run(self, args, config, out):
        self.args, self.config = args, config
        return self.do(out)


@pytest.fixture
def install(monkeypatch):
    """Make one verb the only one."""

    def install(verb):
        monkeypatch.setattr(commands, "VERBS", {"probe": "Probe."})
        monkeypatch.setattr(cli, "import_verb", lambda name: verb)
        return verb

    for variable in ("OTEL_GPU_CONFIG", "OTEL_GPU_SPANS_MODE"):
        monkeypatch.delenv(variable, raising=False)
    return install


def raiser(error):
    def do(out):
        raise error

    return do


def test_the_version_is_printed(capsys):
    """Scripts read the version from standard output."""
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"otel-gpu {otel_gpu.__version__}\n"


def test_starting_up_imports_no_heavy_module():
    """--version pays for neither gRPC nor rich nor YAML, and looks for no cycles at its end."""
    code = (
        "import gc, sys; from otel_gpu.cli import program; sys.argv[1:] = ['--version']; program(); "
        "print(sorted({'grpc', 'rich', 'yaml', 'opentelemetry', 'elftools'} & set(sys.modules)), "
        "gc.get_count()[0] < 100, gc.get_freeze_count() > 10_000)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[] True True"


def test_the_help_lists_every_verb(capsys):
    """Each verb is listed with its line of help, without importing it."""
    assert cli.main(["--help"]) == 0

    text = " ".join(capsys.readouterr().out.split())
    verbs = commands.VERBS
    assert set(verbs) >= {"doctor", "parse", "replay"}
    for name, line in verbs.items():
        assert f"{name} {line}" in text


def test_every_verb_is_a_module():
    """What the table promises can be imported; what begins with an underscore is shared by verbs."""
    modules = {path.stem.rstrip("_") for path in Path(commands.__file__).parent.glob("[a-z]*.py")}

    assert modules == set(commands.VERBS)
    assert all(callable(cli.import_verb(name).run) for name in commands.VERBS)


def test_a_command_without_the_dashes_is_explained(capsys):
    """As other profilers take it, and the usage line shows where it goes."""
    assert cli.main(["run", "python", "train.py"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "otel-gpu: error: unrecognized arguments: python train.py",
        "hint: a command stands after --, as in otel-gpu run -- python train.py",
    ]
    assert cli.main(["run", "--help"]) == 0
    assert "[-- CMD ...]\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ([], "a verb is needed", "see otel-gpu --help"),
        (["prob"], "unknown verb 'prob'", "did you mean probe?"),
        (["xyz"], "unknown verb 'xyz'", "see otel-gpu --help"),
        (["probe", "--deep"], "unrecognized arguments: --deep", "see otel-gpu probe --help"),
        (
            ["probe", "--depth", "x"],
            "argument --depth: invalid int value: 'x'",
            "see otel-gpu probe --help",
        ),
        (["--", "probe"], "-- before the verb", "see otel-gpu --help"),
    ],
)
def test_a_wrong_command_line_is_one_message_and_code_2(install, capsys, arguments, message, hint):
    """An operator gets one line that says what is wrong and one that says what to do."""
    install(Verb())

    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"otel-gpu: error: {message}\nhint: {hint}\n"


def test_the_exit_code_of_a_verb_is_the_programs(install):
    """``run`` ends with the code of the command that it ran."""
    install(Verb(do=lambda out: 143))

    assert cli.main(["probe"]) == 143


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (HostError("no BTF", hint="update"), 1, "otel-gpu: error: no BTF\nhint: update\n"),
        (HostError("no BTF"), 1, "otel-gpu: error: no BTF\n"),
        (CommandError("x: not found", exit_code=127), 127, "otel-gpu: error: x: not found\n"),
        (
            BpfError("refused", hint="see above", log="R1 invalid\n"),
            1,
            "otel-gpu: error: refused\nR1 invalid\nhint: see above\n",
        ),
    ],
)
def test_errors_are_printed_once_with_their_hint(install, capsys, error, code, printed):
    """A failure is told on standard error, and the error picks the code."""
    install(Verb(do=raiser(error)))

    assert cli.main(["probe"]) == code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", printed)


def test_our_own_bugs_are_not_hidden(install):
    """What is no OtelGpuError is a bug, and its traceback belongs on the screen."""
    install(Verb(do=raiser(ZeroDivisionError())))

    with pytest.raises(ZeroDivisionError):
        cli.main(["probe"])


def test_an_interrupt_is_code_130(install):
    """Ctrl-C ends a verb without a traceback, with the code that a shell gives."""
    install(Verb(do=raiser(KeyboardInterrupt())))

    assert cli.main(["probe"]) == 130


def test_what_follows_the_dashes_is_the_command(install):
    """Flags of the command are the command's, even where they look like ours."""
    verb = install(Verb(TAKES_COMMAND=True))

    assert cli.main(["probe", "--depth", "3", "--", "CMD", "--depth", "x", "--", "-v"]) == 0
    assert verb.args.command == ["CMD", "--depth", "x", "--", "-v"]
    assert verb.args.depth == 3


def test_a_verb_without_a_command_gets_an_empty_one(install):
    """``args.command`` is always a list."""
    verb = install(Verb(TAKES_COMMAND=True))

    cli.main(["probe"])

    assert verb.args.command == []


def test_a_verb_that_runs_nothing_refuses_a_command(install, capsys):
    """A command that nobody would run is an error."""
    install(Verb())

    assert cli.main(["probe", "--", "CMD"]) == 2
    assert "probe runs no command" in capsys.readouterr().err


def test_flags_from_the_table_reach_the_configuration(install, tmp_path):
    """A flag overrides the file that --config names."""
    path = tmp_path / "c.yaml"
    path.write_text("spans: {mode: none}\nexport: {otlp_file: a}")
    verb = install(Verb(CONFIG_FLAGS=("spans.mode", "export.otlp_file")))

    assert cli.main(["probe", "--config", str(path), "--spans", "full"]) == 0
    assert verb.config.spans.mode == "full"
    assert verb.config.export.otlp_file == "a"


def test_a_broken_configuration_is_code_2(install, capsys, monkeypatch):
    """A malformed option ends the program before anything is done."""
    monkeypatch.setenv("OTEL_GPU_SPANS_MODE", "ful")
    install(Verb(do=raiser(AssertionError("must not run"))))

    assert cli.main(["probe"]) == 2
    assert capsys.readouterr().err == (
        "otel-gpu: error: OTEL_GPU_SPANS_MODE: must be one of chosen, full, none, not 'ful'\n"
        "hint: did you mean full?\n"
    )


@pytest.mark.parametrize(
    ("flags", "level"),
    [([], logging.WARNING), (["-v"], logging.INFO), (["-vv"], logging.DEBUG)],
)
def test_verbosity_sets_the_level(install, monkeypatch, flags, level):
    """Each -v lets one more level of messages through."""
    monkeypatch.setattr(cli, "_logger", logger := logging.getLogger("otel_gpu_test"))
    install(Verb())

    cli.main(["probe", *flags])

    assert logger.level == level


def test_log_messages_look_like_our_other_messages(install, capsys):
    """A warning from anywhere is one line on standard error, in our own form."""
    install(Verb(do=lambda out: logging.getLogger("otel_gpu.x").warning("late by %d ns", 5) or 0))

    assert cli.main(["probe"]) == 0
    assert capsys.readouterr().err == "otel-gpu: warning: late by 5 ns\n"


def test_results_and_notes_go_to_different_streams(install, capsys):
    """What is piped onward holds results and nothing else."""

    def do(out):
        out.line("result")
        out.json({"name": "µ"})
        out.note("a note")
        return 0

    install(Verb(do=do))

    cli.main(["probe"])

    captured = capsys.readouterr()
    assert captured.out == 'result\n{\n  "name": "µ"\n}\n'
    assert captured.err == "otel-gpu: a note\n"


def test_a_reader_that_goes_away_ends_the_program_quietly():
    """``otel-gpu ... | head`` prints no traceback."""
    code = (
        "import sys; from otel_gpu import cli; from types import SimpleNamespace as N; "
        "verb = N(add_arguments=lambda p: None, "
        "run=lambda a, c, o: [o.line('x' * 100) for _ in range(100000)] and 0); "
        "cli.commands.VERBS = {'probe': ''}; cli.import_verb = lambda name: verb; "
        "sys.exit(cli.main(['probe']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
        code = process.wait(timeout=30)

    assert (said, code) == ("", 141)


RECORDING = Path(otel_gpu.__file__).parent / "demo" / "recordings" / "two-causes.otelgpu"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["explain", "--help"],
        ["compare", RECORDING, RECORDING],
        ["demo"],
        ["doctor"],
        ["doctor", "--json"],
        ["explain", RECORDING],
        ["explain", RECORDING, "--json"],
        ["explain", RECORDING, "--per-process"],
        ["parse", RECORDING],
        ["report", RECORDING],
        ["stacks", RECORDING],
        ["stacks", RECORDING, "--json"],
        ["top", RECORDING],
    ],
    ids=lambda arguments: " ".join(map(str, arguments)).replace(str(RECORDING), "FILE"),
)
def test_whatever_prints_ends_with_141_where_nobody_reads(arguments, tmp_path):
    """Also what a library prints, and what would be said when the program ends."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "otel_gpu", *map(str, arguments)],
            stdout=writing,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=60,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "OTEL_GPU_STORE_ENABLED": "off"},
        )
    finally:
        os.close(writing)

    assert done.returncode == 141
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_what_is_said_to_nobody_changes_no_exit_code():
    """A reader of standard error that went away is no reason to fail."""
    code = (
        "import sys; from otel_gpu import cli; from types import SimpleNamespace as N; "
        "verb = N(add_arguments=lambda p: None, run=lambda a, c, o: sys.stderr.write('x') and 3); "
        "sys.stderr = open(2, 'w', buffering=8192, closefd=False); "
        "cli.commands.VERBS = {'probe': ''}; cli.import_verb = lambda name: verb; "
        "sys.exit(cli.main(['probe']))"
    )
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run([sys.executable, "-c", code], stderr=writing, timeout=30, check=False)
    finally:
        os.close(writing)

    assert done.returncode == 3
