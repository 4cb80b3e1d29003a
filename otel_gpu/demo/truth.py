"""The injected causes that a scenario prints, which an explanation has to find."""

import json
from collections.abc import Iterator
from typing import Any

from otel_gpu.demo.loop import place_of
from otel_gpu.demo.scenarios import Scenario


def describe(line: str) -> Iterator[str]:
    """Describe a scenario's line of JSON in words, one line per effect or loss."""
    document = json.loads(line)
    effects, losses = document["effects"], document.get("losses", ())
    if memory := document.get("memory"):
        asked, held = (
            "{function} {file}:{last_line}".format(**memory[of]) for of in ("asked", "held")
        )
        yield f"a request for memory in {asked} failed: {memory['cause']}, by what {held} holds"
    elif not effects and not losses:
        yield "nothing was done to it"
    for loss in losses:
        yield f"in all its steps together: {_describe(loss)}"
    for number, effect in enumerate(effects, 1):
        causes = ", then ".join(map(_describe, effect["causes"]))
        duration_ns = effect["end_ns"] - effect["start_ns"]
        yield (
            f"{number}. {effect['kind'].replace('_', ' ')} of {duration_ns / 1e6:.1f} ms "
            f"({effect['api']}): {causes}"
        )


def lines_of(scenario: Scenario) -> dict[str, dict[str, object]]:
    """Return the places where the loop of a scenario loses time, by kind of cause."""
    return {kind: place_of(function, lines=None) for kind, function in scenario.lines.items()}


def _describe(cause: dict[str, Any]) -> str:
    words = f"{cause['kind']} {cause['time_ns'] / 1e6:.1f} ms"
    if resource := cause.get("resource"):
        words += f" for {resource}"
    if pid := cause["pid"]:
        words += f" by thread {cause.get('tid', pid)} of process {pid}"
    if place := cause.get("place"):
        words += " in {function} {file}:{last_line}".format(**place)
    if via := cause.get("via"):
        words += f", which had {_describe(via)}"
    return words
