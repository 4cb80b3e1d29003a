"""
The real command line with faults in it: ``python -m tests.chaos.sabotage PLACES VERB …``.

``PLACES`` names functions, as ``module:Class.method@AFTER/EVERY``, several with ``,``: each raises
in every EVERY-th call after the first AFTER ones. ``@3`` alone means in all calls after three.
"""

import functools
import importlib
import itertools
import sys

from otel_gpu import cli


class SabotageError(RuntimeError):
    """An error that no code expects."""


def fail_at(place: str) -> None:
    """Replace the function of a place."""
    name, _, when = place.partition("@")
    after, _, every = when.partition("/")
    module, _, path = name.partition(":")
    owner = importlib.import_module(module)
    *parents, last = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    original = getattr(owner, last)
    calls = itertools.count()

    @functools.wraps(original)
    def sabotaged(*args: object, **kwargs: object) -> object:
        past = next(calls) - int(after or 0)
        if past >= 0 and past % int(every or 1) == 0:
            raise SabotageError(place)
        return original(*args, **kwargs)

    setattr(owner, last, sabotaged)


if __name__ == "__main__":
    for each in filter(None, sys.argv[1].split(",")):
        fail_at(each)
    sys.exit(cli.main(sys.argv[2:]))
