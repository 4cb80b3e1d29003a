"""The tools, by topic."""

from otel_gpu.mcp.tool import Tool
from otel_gpu.mcp.tools.chains import get_causal_chains, get_timeline
from otel_gpu.mcp.tools.check import get_check, get_processes
from otel_gpu.mcp.tools.collectives import get_collectives
from otel_gpu.mcp.tools.comparison import get_comparison
from otel_gpu.mcp.tools.device import get_device_time
from otel_gpu.mcp.tools.figures import get_memory_balance, get_time_budget, get_trace_stats
from otel_gpu.mcp.tools.memory import get_device_memory
from otel_gpu.mcp.tools.sql import run_sql
from otel_gpu.mcp.tools.stacks import get_stacks

TOOLS: tuple[Tool, ...] = (
    get_check,
    get_processes,
    get_trace_stats,
    get_time_budget,
    get_causal_chains,
    get_timeline,
    get_collectives,
    get_memory_balance,
    get_device_memory,
    get_device_time,
    get_comparison,
    get_stacks,
    run_sql,
)
"""In the order in which an investigation uses them."""
