"""What would read a tensor without `await`: an error where an event loop runs, and blocking elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..devices.contract import Device
from ..ops.table import TABLE
from .handles import Handle, blocking_read


class ImplicitBarriers(Handle):
    """Python's and NumPy's ways to ask for a value at once.

    On a thread that runs an event loop, and inside a task, each raises ImplicitBarrierError with the cure. On any other
    thread it blocks until the value is there.
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        return bool(self._read("bool(t)", "use `await t.item()`"))

    def __float__(self) -> float:
        return float(self._read("float(t)", "use `await t.item()`"))

    def __int__(self) -> int:
        return int(self._read("int(t)", "use `await t.item()`"))

    def __complex__(self) -> complex:
        return complex(self._read("complex(t)", "use `await t.item()`"))

    def __index__(self) -> int:
        return self._read("operator.index(t)", "use `await t.item()`").__index__()  # type: ignore[no-any-return]

    def __format__(self, spec: str) -> str:
        if not spec:
            return repr(self)
        return format(self._read(f"format(t, {spec!r})", "use `await t.item()`").item(), spec)

    def tolist(self) -> Any:
        """Blocks: for threads without an event loop. Elsewhere use `(await t).tolist()`."""
        return self._read("t.tolist()", "use `(await t).tolist()`").tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self._read("np.asarray(t)", "use `await t` or `await t.numpy()`")
        return np.array(array, dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return blocking_read(self._value, "DLPack export", "export `await t` instead").__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: Device = self._value.device
        return device.dlpack

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return self._through_numpy(f"np.{function.__name__}(t)", function.__name__, function, args, kwargs)

    def _through_numpy(self, what: str, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        cure = f"use `asyncsched.{name}(t)`" if name in TABLE else "use asyncsched's functions, or `await t` first"
        self._read(what, cure)
        return function(*[np.asarray(a) if isinstance(a, ImplicitBarriers) else a for a in args], **kwargs)

    def _read(self, what: str, cure: str) -> Any:
        array = blocking_read(self._value, what, cure)
        return array if isinstance(array, np.ndarray) else self._value.device.fetch(array)
