"""
The plugins for vLLM and SGLang (``vllm.general_plugins``, ``sglang.srt.plugins``).

The engines call them in each of their processes wherever this package is installed, so an unused
plugin must cost nothing.
"""

import functools
import logging
import os
from collections.abc import Callable

_logger = logging.getLogger(__name__)


@functools.cache
def watch_vllm() -> None:
    """Watch vLLM in this process once it imports its engine. Further calls do nothing."""
    _watch("vLLM", _import_vllm)


@functools.cache
def watch_sglang() -> None:
    """Watch SGLang in this process once it imports its scheduler. Further calls do nothing."""
    _watch("SGLang", _import_sglang)


def _import_vllm() -> Callable[[], None]:
    from otel_gpu.instrumentation.engines import vllm  # noqa: PLC0415 - not if switched off

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
        # Not a warning: the extra is optional.
        _logger.info("no steps of %s (%s): install otel-gpu[instrument]", engine, error)
    except Exception:
        _logger.warning("no steps of %s", engine, exc_info=True)
