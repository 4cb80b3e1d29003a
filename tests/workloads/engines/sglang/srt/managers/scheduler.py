"""The seam of SGLang 0.5.23: ``Scheduler.run_batch``; ``launch`` stands for what it launches."""

from sglang.srt.plugins import load_plugins


class Scheduler:
    def __init__(self, launch):
        self.launch = launch

    def run_batch(self, batch, pp_proxy_tensors=None):
        return self.launch(batch.forward_mode.name)


def run_scheduler_process(launch):
    load_plugins()
    return Scheduler(launch)
