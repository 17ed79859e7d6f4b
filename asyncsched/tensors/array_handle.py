"""What a tensor is before anything is computed with it: what is known of it at once, and how its array is had."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, cast

import numpy as np

from .._core.callsite import line_of
from ..devices.contract import Device
from ..errors import ImplicitBarrierError
from ..ops.meta import Shape
from .copies import copy_out
from .handles import reach, runtime_of
from .number import Number
from .reading import Unread


class ArrayHandle(Unread):
    """A handle on an array to come."""

    __slots__ = ()

    # -- what is known at once ----------------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        """Lengths of the axes; None where one depends on data that is not there yet."""
        shape: Shape = self._value.meta.shape
        return shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The data type."""
        dtype: np.dtype[Any] = self._value.meta.dtype
        return dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._value.meta.shape)

    @property
    def size(self) -> int | None:
        """The number of elements, or None while it is unknown."""
        meta = self._value.meta
        return meta.nbytes // meta.dtype.itemsize if meta.known and meta.dtype.itemsize else None

    @property
    def nbytes(self) -> int:
        """Bytes of the elements; while a length is unknown, of the largest possible result."""
        nbytes: int = self._value.meta.nbytes
        return nbytes

    @property
    def device(self) -> Device:
        """Where the array is, or will be."""
        device: Device = self._value.device
        return device

    def __repr__(self) -> str:
        return f"Tensor(shape={self.shape}, dtype={self.dtype}, device={self.device.name}, {self._status()})"

    def _repr_html_(self) -> str:
        from ..pictures.tables import preview, table

        self.done()  # takes in what has ended
        value, state = self._value, self._status()
        rows: list[tuple[str, Any]] = [
            ("shape", self.shape),
            ("dtype", self.dtype),
            ("device", self.device.name),
            ("state", state),
        ]
        if value.site is not None:
            rows.append(("submitted at", line_of(value.site)))
        there = state == "done" and type(value.array) is np.ndarray
        return table("Tensor", rows, preview(value.array) if there else "")

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without axes")
        if self.shape[0] is None:
            raise ImplicitBarrierError("the length depends on data: use `len(await t)`")
        return self.shape[0]

    # -- out of the scheduler -----------------------------------------------------------------------------------

    async def numpy(self) -> np.ndarray[Any, Any]:
        """A host copy that is yours: writable, and not charged to the scheduler. Waits for the tensor alone.

        Raises what the task raised, or TaskCancelled. Cancelling the wait leaves the tensor alone.

        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         x = await s.put(np.zeros(3))
        ...         h = await x.numpy()
        ...         h[0] = 1
        ...         print(h, await x)
        >>> asc.run(main)
        [1. 0. 0.] [0. 0. 0.]
        """
        value = self._value
        try:
            await reach(value)
            if value.failure is not None:
                value.failure.rethrow()
            return cast(np.ndarray[Any, Any], await copy_out(runtime_of(value), value))
        finally:
            del self, value  # see `Handle.__await__`

    def item(self) -> Coroutine[Any, Any, bool | int | float]:
        """The only element, as a Python scalar: a coroutine, which is no number before it is awaited and says so.

        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         x = await s.put(np.arange(4.0))
        ...         if await (x.max() > 2).item():
        ...             return await x.sum().item()
        >>> asc.run(main)
        6.0

        For type checkers it is a real number, as in PyTorch; complex elements come as `complex` nevertheless.

        Raises:
            ValueError: if there is not exactly one.
            Exception: what the task raised; TaskCancelled if it was cancelled. Cancelling the wait leaves it alone.
            ImplicitBarrierError: where the coroutine is taken for the number.
        """
        if self.size not in (1, None):
            raise ValueError(f"item() needs exactly one element, and the shape is {self.shape}: use `await t.numpy()`")
        return Number(self._item())

    async def _item(self) -> bool | int | float:
        value = self._value
        try:
            await reach(value)
            if value.failure is not None:
                value.failure.rethrow()
            array = value.array if value.device.inline else await copy_out(runtime_of(value), value)
            number: float = array.item()
            return number
        finally:
            del self, value  # see `Handle.__await__`
