"""
The main job, shown: a real workload, captured with eBPF, sent to a real collector.

Starts a collector (rotel, from PyPI) on loopback, runs ``workload.py`` under
``otel-gpu run`` with its OTLP endpoint there, and prints what the collector received.
Where this host cannot capture, a recording that ships with the project is replayed
into the same collector instead.
"""

import collections
import importlib.util
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
RECORDING = HERE / "demo.otelgpu"
START_TIMEOUT_S = 10.0
OTEL_GPU = [sys.executable, "-m", "otel_gpu"]

_SERVICE = re.compile(r"-> service\.name: Str\((.*)\)")
_SPAN = re.compile(r"^ +Name +: (.*)")
_METRIC = re.compile(r"^ +-> Name: (.*)")
_COUNT = re.compile(r"^Count: (\d+)")
_API = re.compile(r"-> gpu\.cuda\.api: Str\((.*)\)")


def free_port() -> int:
    """Return a loopback port that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def collector_program() -> Path:
    """Return the collector's executable in its wheel."""
    spec = importlib.util.find_spec("rotel")
    if spec is None or spec.origin is None:
        sys.exit("demo: the rotel collector is not installed; run `make setup`")
    return Path(spec.origin).parent / "rotel-agent"


def start_collector(port: int, folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start the collector, and wait until it listens."""
    with log.open("wb") as output:
        collector = subprocess.Popen(
            [
                collector_program(),
                "start",
                f"--pid-file={folder / 'pid'}",
                f"--log-file={folder / 'agent.log'}",
                f"--otlp-grpc-endpoint=127.0.0.1:{port}",
                f"--otlp-http-endpoint=127.0.0.1:{free_port()}",
                "--debug-log=traces",
                "--debug-log=metrics",
                "--debug-log-verbosity=detailed",
                "--exporter=blackhole",
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s and collector.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return collector
        time.sleep(0.02)
    sys.exit(f"demo: the collector did not start:\n{log.read_text(errors='replace')}")


def read_received(text: str) -> tuple[collections.Counter[tuple[str, str]], dict[str, int]]:
    """
    Count what the collector printed.

    Returns:
        Spans by (service, name), and the last count of each API's duration histogram,
        summed over services.
    """
    spans: collections.Counter[tuple[str, str]] = collections.Counter()
    counts: dict[tuple[str, str], dict[int, int]] = collections.defaultdict(dict)
    service = metric = api = ""
    resource = point = 0
    for line in text.splitlines():
        if match := _SERVICE.search(line):
            service = match[1]
            resource += 1
        elif match := _SPAN.match(line):
            spans[service, match[1]] += 1
        elif match := _METRIC.match(line):
            metric = match[1]
            point = 0
        elif match := _API.search(line):
            api = match[1]
        elif metric == "gpu.cuda.call.duration" and (match := _COUNT.match(line)):
            counts[service, api][resource * 1000 + point] = int(match[1])
            point += 1
    return spans, {f"{s} {a}": max(found.values()) for (s, a), found in counts.items()}


def main() -> None:
    """Run the demo."""
    doctor = subprocess.run([*OTEL_GPU, "doctor"], capture_output=True, text=True, check=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = folder / "collector.out"
        port = free_port()
        collector = start_collector(port, folder, log)
        environment = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
        print(f"A collector listens on 127.0.0.1:{port}.", flush=True)
        if doctor.returncode == 0:
            command = [*OTEL_GPU, "run", "--", sys.executable, str(HERE / "workload.py")]
            print("Capturing: otel-gpu run -- python examples/workload.py\n", flush=True)
        else:
            print("\nThis host cannot capture:", doctor.stdout.strip(), sep="\n")
            command = [*OTEL_GPU, "replay", str(RECORDING)]
            print("\nReplaying instead: otel-gpu replay examples/demo.otelgpu\n", flush=True)
        result = subprocess.run(command, env=environment, check=False)
        collector.terminate()
        collector.wait()
        spans, counts = read_received(log.read_text(errors="replace"))
    print("\nThe collector received these spans:")
    for (service, span), count in sorted(spans.items()):
        print(f"  {count:6}  {service}  {span}")
    print("and these counts in gpu.cuda.call.duration (the largest per process):")
    for series, count in sorted(counts.items()):
        print(f"  {count:6}  {series}")
    if result.returncode or not spans or not counts:
        sys.exit("demo: something is missing above")


if __name__ == "__main__":
    main()
