"""The seam of ``torch.optim.optimizer`` (2.0 and newer) that hooks for all optimizers go through."""

from collections import OrderedDict

_hooks = OrderedDict()


class RemovableHandle:
    def __init__(self, number):
        self._number = number

    def remove(self):
        _hooks.pop(self._number, None)


def register_optimizer_step_post_hook(hook):
    handle = RemovableHandle(len(_hooks))
    _hooks[len(_hooks)] = hook
    return handle


class Optimizer:
    def step(self, closure=None):
        for hook in list(_hooks.values()):
            hook(self, (closure,), {})
