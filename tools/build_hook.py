"""Compile the BPF programs into the wheel; hatchling calls this when it builds one."""

import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BpfBuildHook(BuildHookInterface[Any]):
    """Runs ``make -C bpf``, whose outputs git ignores and a wheel needs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the objects; an editable install leaves that to ``make bpf``."""
        if version == "editable":
            return
        subprocess.run(["make", "-C", str(Path(self.root) / "bpf")], check=True)
        build_data["artifacts"].append("/otel_gpu/_bpf/*.o")
