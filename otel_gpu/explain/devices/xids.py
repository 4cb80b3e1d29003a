"""
NVIDIA's numbers of device errors (XIDs): meaning, severity, and what to do.

By NVIDIA's "XID Errors" (docs.nvidia.com/deploy/xid-errors). Numbers that are not here are as
severe as most: the process whose work it was does not go on.
"""

from collections.abc import Mapping
from typing import NamedTuple

from otel_gpu.explain.kinds import Severity


class XidMeaning(NamedTuple):
    """
    What a number means, and what to do about it.

    ``is_of_all``: the error affects all processes that use the device, and not only the one whose
    work it was.
    """

    number: int
    meaning: str
    severity: Severity
    advice: str
    is_of_all: bool = False


_PROGRAM = (
    "A kernel of the program, or of a library, went wrong: run it under compute-sanitizer, with "
    "CUDA_LAUNCH_BLOCKING=1 to know the launch. If it comes with many programs, suspect the device."
)
_MEMORY = (
    "Memory of the device lost data. Take the device out of service, reset it (nvidia-smi --gpu-reset), "
    "and have it replaced if it comes again (nvidia-smi -q -d ECC,ROW_REMAPPER)."
)
_DRIVER = (
    "The driver or the firmware of the device stopped. Reset the device or restart the host; if it comes "
    "again, update driver and firmware."
)
_LINK = (
    "A link between devices failed. See nvidia-smi nvlink -e, and the cables, bridges or the fabric "
    "manager; reset all devices that it links."
)
_OF_ANOTHER = "It follows another error, or the end of the process: look at what came before it."

XIDS: tuple[XidMeaning, ...] = (
    XidMeaning(13, "an exception of the graphics engine", Severity.HIGH, _PROGRAM),
    XidMeaning(31, "a page fault of the device's memory", Severity.HIGH, _PROGRAM),
    XidMeaning(32, "an invalid or corrupted push buffer", Severity.HIGH, _DRIVER),
    XidMeaning(38, "an error of the driver's firmware", Severity.HIGH, _DRIVER, is_of_all=True),
    XidMeaning(43, "a channel of the program was stopped", Severity.HIGH, _PROGRAM),
    XidMeaning(45, "the work of the program was removed", Severity.LOW, _OF_ANOTHER),
    XidMeaning(48, "an ECC error of two bits", Severity.HIGH, _MEMORY, is_of_all=True),
    XidMeaning(
        61, "a breakpoint of the internal micro-controller", Severity.HIGH, _DRIVER, is_of_all=True
    ),
    XidMeaning(
        62, "a halt of the internal micro-controller", Severity.HIGH, _DRIVER, is_of_all=True
    ),
    XidMeaning(
        63,
        "a row of memory is to be remapped, or a page retired",
        Severity.LOW,
        "Reset the device when it has nothing to do: the remapping happens then.",
    ),
    XidMeaning(64, "a row of memory could not be remapped", Severity.HIGH, _MEMORY),
    XidMeaning(69, "an error of the graphics engine's class", Severity.HIGH, _PROGRAM),
    XidMeaning(74, "an error of NVLink", Severity.HIGH, _LINK, is_of_all=True),
    XidMeaning(
        79,
        "the device has fallen off the bus",
        Severity.HIGH,
        "The device cannot be reached any more: restart the host, then look at its power supply, "
        "temperature and seating. Drain the node if it comes again.",
        is_of_all=True,
    ),
    XidMeaning(92, "many ECC errors of a single bit", Severity.MEDIUM, _MEMORY),
    XidMeaning(94, "an ECC error that only this program has to pay for", Severity.HIGH, _MEMORY),
    XidMeaning(
        95, "an ECC error that all programs have to pay for", Severity.HIGH, _MEMORY, is_of_all=True
    ),
    XidMeaning(109, "a context switch took too long", Severity.HIGH, _DRIVER),
    XidMeaning(
        119, "the device's system processor did not answer", Severity.HIGH, _DRIVER, is_of_all=True
    ),
    XidMeaning(
        120, "an error of the device's system processor", Severity.HIGH, _DRIVER, is_of_all=True
    ),
    XidMeaning(121, "an error of the link to the CPU, which was corrected", Severity.LOW, _LINK),
    XidMeaning(137, "an access over NVLink that is not allowed", Severity.HIGH, _PROGRAM),
    XidMeaning(
        140, "an ECC error that was not recovered from", Severity.HIGH, _MEMORY, is_of_all=True
    ),
    XidMeaning(154, "another recovery is needed from now on", Severity.LOW, _OF_ANOTHER),
)
_BY_NUMBER: Mapping[int, XidMeaning] = {one.number: one for one in XIDS}


def meaning_of(number: int) -> XidMeaning:
    """Return what a number means, also an unknown one."""
    return _BY_NUMBER.get(number) or XidMeaning(
        number,
        "an error of the device",
        Severity.HIGH,
        f"Look for XID {number} in NVIDIA's \"XID Errors\", and in the kernel's log around that time.",
    )
