"""What loads the plugins, in each process of the engine."""

from importlib.metadata import entry_points


def load_plugins():
    for plugin in entry_points(group="sglang.srt.plugins"):
        plugin.load()()
