"""The worker of vLLM 0.12.0, which launches in two calls; ``launch`` stands for what it launches."""


class Worker:
    def __init__(self, launch):
        self.launch = launch

    def execute_model(self, scheduler_output):
        if scheduler_output.total_num_scheduled_tokens:
            self.launch("execute_model")

    def sample_tokens(self, grammar_output):
        return self.launch("sample_tokens")
