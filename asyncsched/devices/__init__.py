"""The devices, and how one is chosen by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from .. import _instead
from .contract import Device
from .cpu import CPUDevice

if TYPE_CHECKING:
    from . import cuda as cuda
    from . import sim as sim

__all__ = ["CPUDevice", "Device", "cuda", "sim"]
_NAMES = '"auto", "cpu", "cpu:1", "cuda", "cuda:1"'


def select(wanted: str | Device | Sequence[str | Device], streams: int | None) -> list[Device]:
    """Devices by name, each with `streams` compute streams (None: its own default), not opened yet.

    Raises:
        ValueError: for an unknown name, or for none; for `streams` beside a device object, which has its own.
        TypeError: for anything but names and devices.
    """
    specs: Sequence[Any] = wanted if isinstance(wanted, list | tuple) else [wanted]
    if not specs:
        raise ValueError(f"no device given: name at least one of {_NAMES}")
    return [_device(spec, i if len(specs) > 1 else None, streams) for i, spec in enumerate(specs)]


def _device(spec: Any, position: int | None, streams: int | None) -> Device:
    if not isinstance(spec, str):
        if hasattr(spec, "offload") and hasattr(spec, "capture"):
            if streams is not None:
                raise ValueError(
                    f"streams={streams} is for devices given by name: give it to the {type(spec).__name__} when you"
                    " make that"
                )
            return cast(Device, spec)
        raise TypeError(f"a device is a name ({_NAMES}) or a Device, not {type(spec).__name__}")
    kind, _, number = spec.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (number and not number.isdecimal()):
        raise ValueError(f"unknown device {spec!r}: use {_NAMES}, a Device, or a list of them")
    if kind != "cpu":
        from . import cuda  # here, since it takes some milliseconds

        if kind == "cuda" or cuda.usable():
            return cuda.CUDADevice(int(number or 0), streams or 2)
    return CPUDevice("cpu" if position is None else f"cpu:{position}", streams)


_instead.explain_missing(globals(), __name__, {}, when_used={"": "cuda sim"})  # most programs use neither
