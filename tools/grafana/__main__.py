"""
Writes the dashboards of deploy/grafana/dashboards.

    python -m tools.grafana            write them
    python -m tools.grafana --check    fail if a file differs from what would be written
"""

import json
import sys
from pathlib import Path

from tools.grafana import agent, chains, fleet, inference, memory, node, process, ranks

DASHBOARDS = (fleet, node, process, inference, ranks, chains, memory, agent)
TARGET = Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "dashboards"


def render() -> dict[str, str]:
    """Return the text of each file, by name."""
    rendered = [module.dashboard().render() for module in DASHBOARDS]
    return {
        f"{document['uid'].removeprefix('otel-gpu-')}.json": json.dumps(document, indent=2) + "\n"
        for document in rendered
    }


def main(arguments: list[str]) -> int:
    """Write the files, or compare them."""
    wanted = render()
    if arguments == ["--check"]:
        found = {path.name: path.read_text(encoding="utf-8") for path in TARGET.glob("*")}
        wrong = [name for name in {*wanted, *found} if wanted.get(name) != found.get(name)]
        for name in sorted(wrong):
            print(f"{TARGET / name} is not what `python -m tools.grafana` writes", file=sys.stderr)
        return 1 if wrong else 0
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, text in wanted.items():
        (TARGET / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
