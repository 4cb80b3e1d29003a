"""
What vLLM and SGLang call in each of their processes (``vllm.general_plugins``, ``sglang.srt.plugins``).

They do so wherever this package is installed: what is not asked for costs nothing here.
"""

import functools
import logging
import os
from collections.abc import Callable

_logger = logging.getLogger(__name__)


@functools.cache
def watch_vllm() -> None:
    """Watch vLLM in this process from when it imports its engine; more than once is once."""
    _watch("vLLM", _import_vllm)


@functools.cache
def watch_sglang() -> None:
    """Watch SGLang in this process from when it imports its scheduler; more than once is once."""
    _watch("SGLang", _import_sglang)


def _import_vllm() -> Callable[[], None]:
    from otel_gpu.instrumentation.engines import vllm  # noqa: PLC0415 - not where it is switched off

    return vllm.watch


def _import_sglang() -> Callable[[], None]:
    from otel_gpu.instrumentation.engines import sglang  # noqa: PLC0415 - as above

    return sglang.watch


def _watch(engine: str, imported: Callable[[], Callable[[], None]]) -> None:
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return
    try:
        imported()()
    except ImportError as error:
        # Nobody who has no use for the extra needs to hear of it.
        _logger.info("no steps of %s (%s): install otel-gpu[instrument]", engine, error)
    except Exception:
        _logger.warning("no steps of %s", engine, exc_info=True)
