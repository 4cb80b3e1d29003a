"""The physical GPU that a process means by a device index."""

# An index is valid only inside its process: CUDA_VISIBLE_DEVICES and container runtimes renumber.
# It is not valid in a forked child either, which can choose its devices before it first calls CUDA.
# So identities are kept per program, and only from what CUDA reported to that program itself.

from uuid import UUID

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import DeviceIdentity, ProcessKey

MAX_DEVICES = 256
_NO_UUID = bytes(wire.UUID_BYTES)


class DeviceTable:
    """
    The devices of every program.

    The owner of a program calls ``forget``; each program has up to ``MAX_DEVICES``.
    """

    def __init__(self) -> None:
        self._by_program: dict[ProcessKey, dict[int, DeviceIdentity]] = {}
        self._nameless = tuple(DeviceIdentity(index, None, None) for index in range(MAX_DEVICES))

    def learn(self, program: ProcessKey, index: int, uuid: bytes, name: str) -> None:
        """
        Add what CUDA reported to a process about one of its devices.

        The UUID and the name come from different calls; each adds to what is known, unless the UUID
        shows that it is another device.
        """
        if not 0 <= index < MAX_DEVICES:
            return
        devices = self._by_program.setdefault(program, {})
        known = devices.get(index, self._nameless[index])
        learnt_uuid = bare_uuid(uuid)
        if learnt_uuid is None:
            learnt_uuid = known.uuid
        elif known.uuid not in (None, learnt_uuid):
            known = self._nameless[index]
        devices[index] = DeviceIdentity(index, learnt_uuid, name.strip() or known.model)

    def find(self, program: ProcessKey, index: int) -> DeviceIdentity | None:
        """Return the device with what is known of it; None: the index is unknown."""
        if not 0 <= index < MAX_DEVICES:
            return None
        devices = self._by_program.get(program)
        if devices is not None:
            known = devices.get(index)
            if known is not None:
                return known
        return self._nameless[index]

    def forget(self, program: ProcessKey) -> None:
        """Drop what is known of a program."""
        self._by_program.pop(program, None)


def bare_uuid(uuid: bytes) -> str | None:
    """Return a device UUID as text, without ``GPU-`` or ``MIG-``; None for zeroes."""
    if len(uuid) != wire.UUID_BYTES or uuid == _NO_UUID:
        return None
    return str(UUID(bytes=uuid))
