"""The kernels that the library writes in CUDA C++, by name, in NumPy: the fake runs none of their source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .functions import dispatch


class ElementwiseKernel:
    """A kernel whose arguments are arrays and numbers, and at the end the array that it writes to."""

    def __init__(self, in_params: str, out_params: str, operation: str, name: str = "kernel", **options: Any) -> None:
        self._called = KERNELS[name.removeprefix("asyncsched_")]
        self._names = [param.split()[-1] for param in in_params.split(",")]
        self.name = name

    def __call__(self, *args: Any) -> None:
        *reads, out = args
        dispatch(self.name, self._called, (), {**dict(zip(self._names, reads, strict=True)), "out": out})


class Form:
    """How windows lie on images, by the names of the kernels' arguments."""

    def __init__(self, given: dict[str, int]) -> None:
        pairs = [(given[f"{name}_down"], given[f"{name}_along"]) for name in ("kernel", "stride", "pad", "apart")]
        self.kernel, self.stride, self.pad, self.apart = pairs
        self.images = [given[name] for name in ("images", "channels", "height", "width")]
        self.first, self.rows, self.across = given["first"], given["rows"], given["across"]

    def padded(self, x: Any, value: float) -> Any:
        around = [(pad, pad) for pad in self.pad]
        return np.pad(x.reshape(self.images), ((0, 0), (0, 0), *around), constant_values=value)

    def inside(self, padded: Any) -> Any:
        height, width = self.images[2:]
        return padded[:, :, self.pad[0] : self.pad[0] + height, self.pad[1] : self.pad[1] + width]

    def places(self) -> Iterator[tuple[int, int, Any]]:
        """For each place in a window its row, its column, and where on padded images it lies in all windows."""
        for a, b in np.ndindex(*self.kernel):
            top = a * self.apart[0] + self.first * self.stride[0]
            left = b * self.apart[1]
            lines = slice(top, top + self.rows * self.stride[0], self.stride[0])
            yield a, b, (..., lines, slice(left, left + self.across * self.stride[1], self.stride[1]))


def unfold(x: Any, out: Any, **form: int) -> Any:
    windows = Form(form)
    padded = windows.padded(x, 0)
    found = out.reshape(windows.images[1], *windows.kernel, windows.images[0], windows.rows, windows.across)
    for a, b, place in windows.places():
        found[:, a, b] = padded[place].swapaxes(0, 1)
    return out


def fold(x: Any, more: int, out: Any, **form: int) -> Any:
    windows = Form(form)
    padded = windows.padded(out if more else np.zeros_like(out), 0)
    parts = x.reshape(windows.images[1], *windows.kernel, windows.images[0], windows.rows, windows.across)
    for a, b, place in windows.places():
        padded[place] += parts[:, a, b].swapaxes(0, 1)
    out[...] = windows.inside(padded).reshape(-1)
    return out


def pool(x: Any, out: Any, **form: int) -> Any:
    windows = Form(form)
    padded = windows.padded(x, -np.inf)
    seen = [padded[place] for _, _, place in windows.places()]
    out[...] = np.maximum.reduce(seen).reshape(-1)
    return out


def pool_backward(x: Any, found: Any, grad: Any, out: Any, **form: int) -> Any:
    windows = Form(form)
    padded, total = windows.padded(x, np.nan), windows.padded(np.zeros_like(x), 0)
    missing = windows.padded(np.isnan(x), False)
    largest, g = [array.reshape(*windows.images[:2], windows.rows, windows.across) for array in (found, grad)]
    places = [place for _, _, place in windows.places()]
    done = np.zeros(largest.shape, bool)
    for array, order in ((padded, places), (missing, places[::-1])):
        for place in order:
            chosen = (array[place] if array is missing else array[place] == largest) & ~done
            total[place] += np.where(chosen, g, 0)
            done |= chosen
    out[...] = windows.inside(total).reshape(-1)
    return out


KERNELS: dict[str, Callable[..., Any]] = {
    "unfold": unfold, "fold": fold, "pool": pool, "pool_backward": pool_backward
}  # fmt: skip
