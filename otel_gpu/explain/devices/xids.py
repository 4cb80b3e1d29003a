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
    XidMeaning(
        number=13,
        meaning="an exception of the graphics engine",
        severity=Severity.HIGH,
        advice=_PROGRAM,
    ),
    XidMeaning(
        number=31,
        meaning="a page fault of the device's memory",
        severity=Severity.HIGH,
        advice=_PROGRAM,
    ),
    XidMeaning(
        number=32,
        meaning="an invalid or corrupted push buffer",
        severity=Severity.HIGH,
        advice=_DRIVER,
    ),
    XidMeaning(
        number=38,
        meaning="an error of the driver's firmware",
        severity=Severity.HIGH,
        advice=_DRIVER,
        is_of_all=True,
    ),
    XidMeaning(
        number=43,
        meaning="a channel of the program was stopped",
        severity=Severity.HIGH,
        advice=_PROGRAM,
    ),
    XidMeaning(
        number=45,
        meaning="the work of the program was removed",
        severity=Severity.LOW,
        advice=_OF_ANOTHER,
    ),
    XidMeaning(
        number=48,
        meaning="an ECC error of two bits",
        severity=Severity.HIGH,
        advice=_MEMORY,
        is_of_all=True,
    ),
    XidMeaning(
        number=61,
        meaning="a breakpoint of the internal micro-controller",
        severity=Severity.HIGH,
        advice=_DRIVER,
        is_of_all=True,
    ),
    XidMeaning(
        number=62,
        meaning="a halt of the internal micro-controller",
        severity=Severity.HIGH,
        advice=_DRIVER,
        is_of_all=True,
    ),
    XidMeaning(
        number=63,
        meaning="a row of memory is to be remapped, or a page retired",
        severity=Severity.LOW,
        advice="Reset the device when it has nothing to do: the remapping happens then.",
    ),
    XidMeaning(
        number=64,
        meaning="a row of memory could not be remapped",
        severity=Severity.HIGH,
        advice=_MEMORY,
    ),
    XidMeaning(
        number=69,
        meaning="an error of the graphics engine's class",
        severity=Severity.HIGH,
        advice=_PROGRAM,
    ),
    XidMeaning(
        number=74,
        meaning="an error of NVLink",
        severity=Severity.HIGH,
        advice=_LINK,
        is_of_all=True,
    ),
    XidMeaning(
        number=79,
        meaning="the device has fallen off the bus",
        severity=Severity.HIGH,
        advice="The device cannot be reached any more: restart the host, then look at its power supply, "
        "temperature and seating. Drain the node if it comes again.",
        is_of_all=True,
    ),
    XidMeaning(
        number=92,
        meaning="many ECC errors of a single bit",
        severity=Severity.MEDIUM,
        advice=_MEMORY,
    ),
    XidMeaning(
        number=94,
        meaning="an ECC error that only this program has to pay for",
        severity=Severity.HIGH,
        advice=_MEMORY,
    ),
    XidMeaning(
        number=95,
        meaning="an ECC error that all programs have to pay for",
        severity=Severity.HIGH,
        advice=_MEMORY,
        is_of_all=True,
    ),
    XidMeaning(
        number=109, meaning="a context switch took too long", severity=Severity.HIGH, advice=_DRIVER
    ),
    XidMeaning(
        number=119,
        meaning="the device's system processor did not answer",
        severity=Severity.HIGH,
        advice=_DRIVER,
        is_of_all=True,
    ),
    XidMeaning(
        number=120,
        meaning="an error of the device's system processor",
        severity=Severity.HIGH,
        advice=_DRIVER,
        is_of_all=True,
    ),
    XidMeaning(
        number=121,
        meaning="an error of the link to the CPU, which was corrected",
        severity=Severity.LOW,
        advice=_LINK,
    ),
    XidMeaning(
        number=137,
        meaning="an access over NVLink that is not allowed",
        severity=Severity.HIGH,
        advice=_PROGRAM,
    ),
    XidMeaning(
        number=140,
        meaning="an ECC error that was not recovered from",
        severity=Severity.HIGH,
        advice=_MEMORY,
        is_of_all=True,
    ),
    XidMeaning(
        number=154,
        meaning="another recovery is needed from now on",
        severity=Severity.LOW,
        advice=_OF_ANOTHER,
    ),
)
_BY_NUMBER: Mapping[int, XidMeaning] = {one.number: one for one in XIDS}


def meaning_of(number: int) -> XidMeaning:
    """Return what a number means, also an unknown one."""
    return _BY_NUMBER.get(number) or XidMeaning(
        number=number,
        meaning="an error of the device",
        severity=Severity.HIGH,
        advice=f"Look for XID {number} in NVIDIA's \"XID Errors\", and in the kernel's log around that time.",
    )
