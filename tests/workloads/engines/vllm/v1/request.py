class Request:
    def __init__(self, request_id, prompt_token_ids, max_tokens, trace_headers=None):
        self.request_id = request_id
        self.num_prompt_tokens = len(prompt_token_ids)
        self.max_tokens = max_tokens
        self.trace_headers = trace_headers
        self.num_computed_tokens = 0
        self._all_token_ids = list(prompt_token_ids)

    def append_output_token_ids(self, token):
        self._all_token_ids.append(token)

    @property
    def num_tokens(self):
        return len(self._all_token_ids)

    def is_finished(self):
        return self.num_tokens - self.num_prompt_tokens >= self.max_tokens
