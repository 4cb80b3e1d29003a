"""What loads the plugins: in the engine's core and in each worker, and each time only once."""

from importlib.metadata import entry_points

_loaded = False


def load_general_plugins():
    global _loaded  # noqa: PLW0603 - as the engine has it
    if _loaded:
        return
    _loaded = True
    for plugin in entry_points(group="vllm.general_plugins"):
        plugin.load()()
