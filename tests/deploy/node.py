"""
Programs as a node runs them, ended with standard input.

    node.py LIBCUDART HANG SCENARIO…

Prints its pid as one line of JSON. At the first line of input ``trainer`` begins to work and the
scenario runs again and again; at the second, ``stuck-service`` hangs in a call. Each says who it
is, as programs in Kubernetes may.
"""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

LIBRARY, HANG, *SCENARIO = sys.argv[1:]
HERE = Path(__file__).resolve().parent
BARE = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}


def start(service: str, command: list[str], **more: str) -> "subprocess.Popen[bytes]":
    said = f"k8s.namespace.name=training,k8s.pod.name={service}-0"
    env = BARE | {"OTEL_SERVICE_NAME": service, "OTEL_RESOURCE_ATTRIBUTES": said} | more
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


def run_scenario_again_and_again() -> None:
    while not ended.is_set():
        start("scenarios", SCENARIO).wait()


print(json.dumps({"pid": os.getpid()}), flush=True)  # noqa: T201
sys.stdin.readline()
ended = threading.Event()
scenarios = threading.Thread(target=run_scenario_again_and_again)
scenarios.start()
programs = [start("trainer", [sys.executable, str(HERE / "trainer.py"), LIBRARY])]
sys.stdin.readline()
programs += [start("stuck-service", [HANG, LIBRARY], CUDA_STUB="cudaStreamSynchronize:hang=1")]
sys.stdin.read()
ended.set()
scenarios.join()
for program in programs:
    program.kill()
    program.wait()
