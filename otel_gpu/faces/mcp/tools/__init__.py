"""The tools, one module for each noun that is asked about."""

from otel_gpu.faces.mcp.tool import Tool
from otel_gpu.faces.mcp.tools.budget import get_time_budget
from otel_gpu.faces.mcp.tools.chains import get_causal_chains
from otel_gpu.faces.mcp.tools.check import get_check
from otel_gpu.faces.mcp.tools.memory import get_memory_balance
from otel_gpu.faces.mcp.tools.processes import get_processes
from otel_gpu.faces.mcp.tools.sql import run_sql
from otel_gpu.faces.mcp.tools.stacks import get_stacks
from otel_gpu.faces.mcp.tools.stats import get_trace_stats
from otel_gpu.faces.mcp.tools.timeline import get_timeline

TOOLS: tuple[Tool, ...] = (
    get_check,
    get_processes,
    get_trace_stats,
    get_time_budget,
    get_causal_chains,
    get_timeline,
    get_memory_balance,
    get_stacks,
    run_sql,
)
"""In the order in which an investigation uses them."""
