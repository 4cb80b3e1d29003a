"""The tools, one module for each noun that is asked about."""

from otel_gpu.faces.mcp.tool import Tool
from otel_gpu.faces.mcp.tools import (
    budget,
    chains,
    check,
    memory,
    processes,
    sql,
    stacks,
    stats,
    timeline,
)

TOOLS: tuple[Tool, ...] = (
    check.TOOL,
    processes.TOOL,
    stats.TOOL,
    budget.TOOL,
    chains.TOOL,
    timeline.TOOL,
    memory.TOOL,
    stacks.TOOL,
    sql.TOOL,
)
"""In the order in which an investigation uses them."""
