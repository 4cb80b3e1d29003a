"""
Makes steps on a GPU when asked to: gpu_steps.py decode|train.

Prints its pid; for each number on its input makes that many steps, waits for the device after each,
and prints the nanoseconds that they took together. Each step asks the host for one number, as a
loop of inference asks for its token, and one of training for its loss.
"""

import json
import os
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

WIDTH, LAYERS, HEADS, CONTEXT = 256, 8, 4, 64


class Layer(nn.Module):
    """A layer of a transformer, of one sequence with a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.cache = torch.zeros(2, HEADS, CONTEXT, WIDTH // HEADS, device="cuda")

    def forward(self, values: torch.Tensor, at: int) -> torch.Tensor:
        """Attend to what is in the cache, and then think."""
        query, key, value = self.qkv(self.norms[0](values)).view(3, HEADS, -1)
        self.cache[0, :, at] = key
        self.cache[1, :, at] = value
        weights = torch.softmax((self.cache[0] @ query.unsqueeze(-1)).squeeze(-1), dim=-1)
        mixed = (weights.unsqueeze(1) @ self.cache[1]).reshape(WIDTH)
        values = values + self.out(mixed)
        return values + self.down(torch.nn.functional.gelu(self.up(self.norms[1](values))))


def decoder() -> Callable[[int], None]:
    """Return what makes a step of an eager decode loop: some 150 launches of small kernels."""
    layers = nn.ModuleList(Layer() for _ in range(LAYERS)).cuda().eval()
    head = nn.Linear(WIDTH, 1_000).cuda()
    values = torch.randn(WIDTH, device="cuda")

    @torch.inference_mode()
    def step(number: int) -> None:
        state = values
        for layer in layers:
            state = layer(state, number % CONTEXT)
        int(head(state).argmax())

    return step


def trainer() -> Callable[[int], None]:
    """Return what makes a training step of a small network."""
    layers = [part for _ in range(6) for part in (nn.Linear(512, 512), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(512, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(64, 512, device="cuda")
    labels = torch.randint(10, (64,), device="cuda")

    def step(_number: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        float(loss)

    return step


def main() -> None:
    """Answer each line."""
    step = {"decode": decoder, "train": trainer}[sys.argv[1]]()
    sys.stdout.write(f"{json.dumps(os.getpid())}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        torch.cuda.synchronize()
        start_ns = time.perf_counter_ns()
        for number in range(int(line)):
            step(number)
        torch.cuda.synchronize()
        sys.stdout.write(f"{time.perf_counter_ns() - start_ns}\n")
        sys.stdout.flush()


main()
