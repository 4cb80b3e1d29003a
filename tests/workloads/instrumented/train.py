"""A training loop that knows nothing of OpenTelemetry: BATCHES, of which one takes longer."""

import sys
import time

BATCHES, SLOW_BATCH, SLOW_S = 11, 6, 0.2
WORK_S, WAIT_S = 0.004, 0.002


def main():
    from torch.optim.optimizer import Optimizer  # noqa: PLC0415 - as programs do
    from torch.utils.data.dataloader import DataLoader  # noqa: PLC0415

    optimizer, other = Optimizer(), Optimizer()
    for batch, _ in enumerate(DataLoader(BATCHES, WAIT_S)):
        time.sleep(SLOW_S if batch == SLOW_BATCH else WORK_S)
        optimizer.step()
        other.step()
    print("opentelemetry.sdk" in sys.modules)  # noqa: T201


if __name__ == "__main__":
    main()
