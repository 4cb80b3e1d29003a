"""The fields of SGLang 0.5.23 that say who has how many tokens, and who asked for them."""

from dataclasses import dataclass

from sglang.srt.model_executor.forward_batch_info import ForwardMode


class TraceReqContext:
    def __init__(self, root_span_context):
        self.root_span_context = root_span_context


class TraceNullContext:
    """In the place of the other one where nothing is traced: it has, and is, everything."""

    def __getattr__(self, name):
        return self

    def __call__(self, *args, **kwargs):
        return self


class SchedulerReqTimeStats:
    def __init__(self, trace_ctx):
        self.trace_ctx = trace_ctx


class Req:
    def __init__(self, rid, trace_ctx):
        self.rid = rid
        self.time_stats = SchedulerReqTimeStats(trace_ctx)


@dataclass
class ScheduleBatch:
    reqs: list[Req]
    forward_mode: ForwardMode
    extend_lens: list[int] | None = None
    decoding_reqs: list[Req] | None = None
