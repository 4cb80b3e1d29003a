"""The MCP server: tools and prompt."""

import logging
import traceback
from collections.abc import Mapping

import anyio
import anyio.to_thread
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    GetPromptRequestParams,
    GetPromptResult,
    ListPromptsResult,
    ListToolsResult,
    PaginatedRequestParams,
    Prompt,
    PromptArgument,
    PromptMessage,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as ToolDescription

from otel_gpu import __version__
from otel_gpu.errors import OtelGpuError
from otel_gpu.mcp import instructions
from otel_gpu.mcp.answers import present, sanitize, to_json
from otel_gpu.mcp.captures import ServedCapture
from otel_gpu.mcp.tools import TOOLS
from otel_gpu.mcp.tools.sql import run_sql

NAME = "otel-gpu"

_SHOWN = 60
_MAX_QUERIES = 16

_logger = logging.getLogger(__name__)
_BY_NAME = {tool.name: tool for tool in TOOLS}
# Not destructive, and limited to the capture: a client need not ask its user.
_READS = ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)


def make_server(capture: ServedCapture) -> Server[object]:
    """Return a server that answers about one capture."""
    # Answers are made one at a time: each can take all of a core. An SQL query has a time limit of
    # its own, and does not delay other answers.
    one, several = anyio.CapacityLimiter(1), anyio.CapacityLimiter(_MAX_QUERIES)
    tools = [
        ToolDescription(
            name=tool.name,
            title=tool.title,
            description=tool.description,
            input_schema=tool.arguments.model_json_schema(),
            annotations=_READS,
        )
        for tool in TOOLS
    ]

    async def list_tools(_: object, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=tools)

    async def call_tool(_: object, params: CallToolRequestParams) -> CallToolResult:
        question = (capture, params.name, params.arguments or {})
        limiter = several if params.name == run_sql.name else one
        text, is_error = await anyio.to_thread.run_sync(answer, *question, limiter=limiter)
        return CallToolResult(content=[TextContent(text=text)], is_error=is_error)

    async def list_prompts(_: object, __: PaginatedRequestParams | None) -> ListPromptsResult:
        return ListPromptsResult(prompts=[_PROMPT])

    async def get_prompt(_: object, params: GetPromptRequestParams) -> GetPromptResult:
        if params.name != instructions.PROMPT_NAME:
            raise MCPError(INVALID_PARAMS, f"there is no prompt {sanitize(params.name, _SHOWN)!r}")
        text = instructions.investigation((params.arguments or {}).get("question", ""))
        message = PromptMessage(role="user", content=TextContent(text=text))
        return GetPromptResult(description=instructions.PROMPT_TEXT, messages=[message])

    return Server(
        NAME,
        version=__version__,
        title="otel-gpu",
        instructions=instructions.INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
    )


def answer(capture: ServedCapture, name: str, arguments: Mapping[str, object]) -> tuple[str, bool]:
    """Return a tool's answer, and whether it is an error; no error ends the server."""
    shown_name = sanitize(name, _SHOWN)
    if name not in _BY_NAME:
        known = ", ".join(_BY_NAME)
        unknown = {"error": f"there is no tool {shown_name!r}", "hint": f"there are: {known}"}
        return to_json(unknown), True
    try:
        return to_json(_BY_NAME[name].answer(capture, arguments)), False
    except OtelGpuError as error:
        return to_json(present(error=str(error), hint=error.hint)), True
    except Exception:  # noqa: BLE001 -- our bug, which costs this answer only
        # Not logged as an exception, which would write traced names unsanitized.
        lines = map(sanitize, traceback.format_exc().splitlines())
        _logger.error("%s failed:\n%s", shown_name, "\n".join(lines))  # noqa: TRY400 -- see above
        return to_json({"error": "this answer failed; see the server's log"}), True


async def serve_stdio(server: Server[object]) -> None:
    """Serve one client on standard input and output, until it closes them."""
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())


_PROMPT = Prompt(
    name=instructions.PROMPT_NAME,
    title=instructions.PROMPT_TITLE,
    description=instructions.PROMPT_TEXT,
    arguments=[
        PromptArgument(name="question", description=instructions.QUESTION_TEXT, required=False)
    ],
)
