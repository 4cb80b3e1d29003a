"""Schedules as much of each request as it lacks, at most so many tokens of all in a step."""

from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput


class Scheduler:
    def __init__(self, max_num_batched_tokens=1 << 20):
        self.max_num_batched_tokens = max_num_batched_tokens
        self.requests = {}
        self._scheduled = set()

    def add_request(self, request):
        self.requests[request.request_id] = request

    def has_requests(self):
        return bool(self.requests)

    def schedule(self):
        budget, new, cached, tokens = self.max_num_batched_tokens, [], [], {}
        for name, request in self.requests.items():
            wanted = min(request.num_tokens - request.num_computed_tokens, budget)
            if wanted <= 0:
                continue
            if name in self._scheduled:
                cached.append((name, request.num_computed_tokens))
            else:
                new.append(NewRequestData(name, request.num_computed_tokens))
                self._scheduled.add(name)
            tokens[name] = wanted
            budget -= wanted
            # As the engine does: what is scheduled counts as computed.
            request.num_computed_tokens += wanted
        return SchedulerOutput(
            new,
            CachedRequestData([name for name, _ in cached], [computed for _, computed in cached]),
            tokens,
            sum(tokens.values()),
        )

    def update_from_output(self, scheduler_output, model_runner_output):
        for name in scheduler_output.num_scheduled_tokens:
            request = self.requests[name]
            if request.num_computed_tokens == request.num_tokens:
                request.append_output_token_ids(model_runner_output)
            if request.is_finished():
                del self.requests[name]
        return dict.fromkeys(scheduler_output.num_scheduled_tokens, model_runner_output)
