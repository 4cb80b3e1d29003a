"""Traced names in a page: clipped, and kept from turning the text around them."""

from otel_gpu.enrich.activities import ProcessImage
from otel_gpu.explain.chains import Culprit, Effect
from otel_gpu.faces.html.elements import Markup, clip, element
from otel_gpu.findings.words import describe_fault, service_of, thread_number

MOST_CHARACTERS = 64
_COMMAND_CHARACTERS = 400


def name_of(name: str) -> Markup:
    """Show a traced name; letters that run from right to left stay among themselves."""
    return element("bdi", clip(name, MOST_CHARACTERS))


def code_of(name: str) -> Markup:
    """Show the name of something that can be called."""
    return element("code", name_of(name))


def process_of(process: ProcessImage) -> Markup:
    """The service's name and the pid."""
    return element("span", name_of(service_of(process)), f" ({process.pid})", class_="who")


def thread_of(thread: Culprit) -> Markup:
    """A thread by name, process and number."""
    return element("span", name_of(thread.comm or "?"), f" ({thread_number(thread)})", class_="who")


def effect_of(effect: Effect) -> Markup:
    """What went wrong with which call or gap."""
    return element("span", describe_fault(effect), " ", code_of(effect.api))


def command_of(process: ProcessImage) -> Markup | None:
    """The command line, as far as it is known."""
    arguments = process.attributes.get("process.command_args")
    if not isinstance(arguments, list | tuple) or not arguments:
        return None
    command = " ".join(map(str, arguments))
    return element("code", element("bdi", clip(command, _COMMAND_CHARACTERS)))
