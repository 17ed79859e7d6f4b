"""`cupy.cuda.device`: the GPUs, and which is current on each thread."""

from __future__ import annotations

from typing import Any

from . import runtime
from .fake import current


class Device:
    """A GPU by number; the current one by default."""

    def __init__(self, device: Any = None) -> None:
        self._fake = current()
        self.id = runtime.getDevice() if device is None else int(device)

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def __enter__(self) -> Device:
        local = self._fake.local
        local.__dict__.setdefault("devices", []).append(self._fake.device())
        runtime.setDevice(self.id)
        return self

    def __exit__(self, *exception: object) -> None:
        self._fake.local.device = self._fake.local.devices.pop()

    def use(self) -> Device:
        runtime.setDevice(self.id)
        return self

    def synchronize(self) -> None:
        with self:
            runtime.deviceSynchronize()
