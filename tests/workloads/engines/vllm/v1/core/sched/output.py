"""What the scheduler sends to its workers; the fields of vLLM 0.12.0 that say who has how many tokens."""

from dataclasses import dataclass


@dataclass
class NewRequestData:
    req_id: str
    num_computed_tokens: int


@dataclass
class CachedRequestData:
    req_ids: list[str]
    num_computed_tokens: list[int]


@dataclass
class SchedulerOutput:
    scheduled_new_reqs: list[NewRequestData]
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
