"""
What the stand-ins beside this file stand for: names as the released packages have them.

Read from ``vllm`` 0.11.0, 0.12.0 and 0.33.0 and ``sglang`` 0.5.23 of PyPI; arguments after ``self``,
and of data the fields that are read.
"""

SCHEDULED = ("scheduled_new_reqs", "scheduled_cached_reqs", "num_scheduled_tokens")

VLLM = {
    "vllm.v1.engine.core.EngineCore.step": (),
    "vllm.v1.engine.core.EngineCore.step_with_batch_queue": (),
    "vllm.v1.core.sched.scheduler.Scheduler.update_from_output": (
        "scheduler_output",
        "model_runner_output",
    ),
    "vllm.v1.worker.gpu_worker.Worker.execute_model": ("scheduler_output",),
}
"""Of all three versions; 0.33.0 schedules with an argument that may be left out."""

VLLM_SINCE_0_12 = {
    "vllm.v1.worker.gpu_worker.Worker.sample_tokens": ("grammar_output",),
}

SGLANG = {
    "sglang.srt.managers.scheduler.Scheduler.run_batch": ("batch", "pp_proxy_tensors"),
    "sglang.srt.model_executor.forward_batch_info.ForwardMode.is_decode": (),
    "sglang.srt.model_executor.forward_batch_info.ForwardMode.is_idle": (),
    "sglang.srt.model_executor.forward_batch_info.ForwardMode.is_prebuilt": (),
}

FIELDS = {
    "vllm.v1.core.sched.output.SchedulerOutput": (*SCHEDULED, "total_num_scheduled_tokens"),
    "vllm.v1.core.sched.output.NewRequestData": ("req_id", "num_computed_tokens"),
    "vllm.v1.core.sched.output.CachedRequestData": ("req_ids", "num_computed_tokens"),
    "sglang.srt.managers.schedule_batch.ScheduleBatch": (
        "reqs",
        "forward_mode",
        "extend_lens",
        "decoding_reqs",
    ),
}
