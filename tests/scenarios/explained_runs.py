"""
Runs a scenario under the real command line, and compares the explanation with the injected causes.

It uses no code of the explanation: a scenario prints what it did, ``otel-gpu run`` records it, and the
document of ``otel-gpu explain --json`` is read as by any program.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from otel_gpu import cli
from otel_gpu.demo.scenarios import CAPTURE_ENVIRONMENT, CAPTURE_FLAGS, Scenario
from tests.kernel.agent import FIRST, otel_gpu
from tests.scenarios.truth import InjectedCause, InjectedEffect, Truth, read_truth

# Number of runs of a scenario in a test.
RUNS = 20 if os.environ.get("OTEL_GPU_TEST_LONG") else 1
# A run takes about two seconds; the rest is room for a busy machine.
TIMEOUT_S = 60.0
# The agent measures inside the probes, the scenario outside of them.
SHARE_TOLERANCE = 0.10
TIME_TOLERANCE = 0.10
TIME_TOLERANCE_NS = 1_000_000


class ExplainedRun(NamedTuple):
    """The injected causes of a scenario, and the document that explains its recording."""

    truth: Truth
    document: Mapping[str, Any]

    @property
    def incidents(self) -> Sequence[Mapping[str, Any]]:
        """Incidents of the process, in the document's order."""
        chains = {chain["id"] for chain in self.chains}
        return [i for i in self.document["incidents"] if chains & set(i["chains"])]

    @property
    def chains(self) -> Sequence[Mapping[str, Any]]:
        """Chains of the process."""
        return [c for c in self.document["chains"] if c["effect"]["pid"] == self.truth.pid]

    def chain_of(self, effect: InjectedEffect) -> Mapping[str, Any] | None:
        """The chain whose effect covers most of the injected one, if most of it."""
        return max(
            (chain for chain in self.chains if self._overlap(chain, effect) > 0.8),
            key=lambda chain: self._overlap(chain, effect),
            default=None,
        )

    def _overlap(self, chain: Mapping[str, Any], effect: InjectedEffect) -> float:
        found = chain["effect"]
        if (found["kind"], found["tid"]) != (effect.kind, self.truth.tid):
            return 0.0
        start_ns = self.truth.to_unix_ns(effect.start_ktime_ns)
        end_ns = self.truth.to_unix_ns(effect.end_ktime_ns)
        common_ns = min(end_ns, found["start_unix_ns"] + found["duration_ns"]) - max(
            start_ns, found["start_unix_ns"]
        )
        return common_ns / max(end_ns - start_ns, found["duration_ns"])


def capture(
    scenario: Scenario, command: Sequence[str], recording: Path, way: str = "probes"
) -> Truth:
    """Record a scenario, whose hot calls are counted by ``probes`` or by the ``preload`` library."""
    flags = (*CAPTURE_FLAGS, *(("--preload",) if way == "preload" else ()))
    with scenario.prepared_host() as environment:
        arguments = ("run", f"--record={recording}", *flags, "--", *command)
        return read_truth(run_verb(*arguments, env=environment))


def explain(recording: Path) -> Mapping[str, Any]:
    """Return the document about a recording."""
    written = recording.with_suffix(".json")
    # In this process: while a scenario's tests run, no other test may.
    assert cli.main(["explain", str(recording), "--json", "--output", str(written)]) == 0
    document: Mapping[str, Any] = json.loads(written.read_text(encoding="utf-8"))
    return document


def run_verb(*arguments: object, env: Mapping[str, str] | None = None) -> str:
    """Return what a verb prints on standard output."""
    # What others do on this machine is found too, and is not what was injected.
    environment = CAPTURE_ENVIRONMENT | dict(env or {})
    done = otel_gpu(*arguments, env=environment, timeout_s=TIMEOUT_S, inside=FIRST)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def faults(explained: ExplainedRun, effect: InjectedEffect) -> Iterator[str]:
    """Yield the differences between an injected effect and its explanation."""
    chain = explained.chain_of(effect)
    if chain is None:
        yield f"no chain for the {effect.kind} of {effect.duration_ns / 1e6:.1f} ms"
        return
    duration_ns = chain["effect"]["duration_ns"]
    total = sum(cause["share"] for cause in chain["causes"]) + chain["unexplained_ns"] / duration_ns
    if abs(total - 1) > 0.01:
        yield f"shares sum to {total:.3f}"
    found = chain["causes"]
    if len(found) < len(effect.causes):
        yield f"causes {[cause['kind'] for cause in found]}"
    for cause, injected in zip(found, effect.causes, strict=False):
        yield from _faults_of_cause(cause, injected, effect, explained.truth)


def _faults_of_cause(
    cause: Mapping[str, Any], injected: InjectedCause, effect: InjectedEffect, truth: Truth
) -> Iterator[str]:
    if cause["kind"] != injected.kind:
        yield f"{cause['kind']} instead of {injected.kind}"
        return
    share = injected.time_ns / effect.duration_ns
    if abs(cause["share"] - share) > SHARE_TOLERANCE:
        yield f"{cause['kind']}: share {cause['share']:.2f} instead of {share:.2f}"
    allowed_ns = max(TIME_TOLERANCE_NS, TIME_TOLERANCE * injected.time_ns)
    if abs(cause["time_ns"] - injected.time_ns) > allowed_ns:
        yield f"{cause['kind']}: {cause['time_ns']} ns instead of {injected.time_ns} ns"
    if injected.pid and injected.kind != "fork":
        culprit = cause["culprit"] or {"pid": None, "tid": None}
        if (culprit["pid"], culprit["tid"]) != (injected.pid, injected.tid):
            yield f"{cause['kind']}: blames {culprit} instead of {injected.pid}/{injected.tid}"
    yield from faults_of_place(cause, injected)
    if injected.via:
        vias = cause.get("via") or []
        if not vias:
            yield f"{cause['kind']}: nothing is behind it"
        for via in vias[:1]:
            # The effect is the same: a share of it is what both are of.
            yield from _faults_of_cause(via, injected.via, effect, truth)


def faults_of_place(cause: Mapping[str, Any], injected: InjectedCause) -> Iterator[str]:
    """Yield the differences between an injected place and the place of a cause, from samples."""
    place = injected.place
    if place is None:
        return
    lines = cause.get("lines") or [{"function": "", "file": "", "line": 0}]
    found = lines[0]["function"], Path(lines[0]["file"]).name, lines[0]["line"]
    if found[:2] != place[:2] or not place.first_line <= found[2] <= place.last_line:
        yield f"{cause['kind']}: in {found} instead of {place}"
