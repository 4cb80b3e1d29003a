"""The seams of vLLM 0.12.0: ``EngineCore``, which schedules, and has what it schedules executed."""

from collections import deque


class EngineCore:
    def __init__(self, scheduler, model_executor, batch_queue_size=1):
        from vllm.plugins import load_general_plugins  # noqa: PLC0415 - as the engine does

        load_general_plugins()
        self.scheduler = scheduler
        self.model_executor = model_executor
        self.batch_queue_size = batch_queue_size
        self.batch_queue = deque() if batch_queue_size > 1 else None
        self.step_fn = self.step if self.batch_queue is None else self.step_with_batch_queue

    def step(self):
        if not self.scheduler.has_requests():
            return {}, False
        scheduler_output = self.scheduler.schedule()
        self.model_executor.execute_model(scheduler_output)
        model_output = self.model_executor.sample_tokens(None)
        outputs = self.scheduler.update_from_output(scheduler_output, model_output)
        return outputs, scheduler_output.total_num_scheduled_tokens > 0

    def step_with_batch_queue(self):
        executed = False
        if self.scheduler.has_requests():
            scheduler_output = self.scheduler.schedule()
            self.model_executor.execute_model(scheduler_output)
            executed = scheduler_output.total_num_scheduled_tokens > 0
            sampled = self.model_executor.sample_tokens(None) if executed else None
            self.batch_queue.appendleft((scheduler_output, sampled))
            if executed and len(self.batch_queue) < self.batch_queue_size:
                return None, True
        elif not self.batch_queue:
            return None, False
        scheduler_output, model_output = self.batch_queue.pop()
        return self.scheduler.update_from_output(scheduler_output, model_output), executed
