"""Errors that depend on the data, such as an index out of range: raised at once on the host, and later on a GPU.

To read a GPU's number is to wait for it. So a kernel states the numbers that decide and a function that judges them,
and goes on as if they were right. The CUDA device copies the numbers to the host behind the kernel, and judges them
when the device has got there (`devices.cuda.deferred_errors`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..._blocks import contextmanager
from ..index_keys import Key, walk

Judge = Callable[..., Exception | None]  # called with the numbers
Check = tuple[Sequence[Any], Judge]

_here = threading.local()


def require(xp: Any, numbers: Sequence[Any], judge: Judge) -> None:
    """Check arrays of one number each: raise the exception that `judge` returns for them, now or (on a GPU) later."""
    found = getattr(_here, "found", None)
    if xp is not np and found is not None:
        found.append((numbers, judge))
        return
    error = judge(*map(int, numbers))
    if error is not None:
        raise error


def require_true(xp: Any, truth: Any, error: Callable[[str], Exception], text: str) -> None:
    """Check that an array of one bool is true: otherwise raise an error with this text."""
    require(xp, (truth,), lambda found: None if found else error(text))


def require_within(xp: Any, indices: Any, length: int, axis: int = 0) -> None:
    """Raise IndexError for an index that is out of range, which CuPy would wrap. NumPy raises itself."""
    if xp is np:
        return
    on_device = isinstance(indices, xp.ndarray)
    found = indices if on_device else np.asarray(indices)
    require_between(xp if on_device else np, found, -length, length, partial(_within_error, length, axis))


def require_key(xp: Any, shape: tuple[int, ...], key: Key, indices: Sequence[Any]) -> None:
    """The same for the index arrays in a key."""
    if xp is np:
        return
    for _, index, axis in walk(key, shape, indices):
        if index is not None and index.dtype != bool:
            require_within(xp, index, shape[axis], axis)


def require_between(xp: Any, numbers: Any, low: int, high: int, wrong: Callable[[int, int], Exception]) -> None:
    """Check that all numbers are from `low` to before `high`. `wrong` is called with the least and the largest."""
    if numbers.size:
        require(xp, (numbers.min(), numbers.max()), lambda a, b: None if low <= a and b < high else wrong(a, b))


def _within_error(length: int, axis: int, least: int, most: int) -> Exception:
    wrong = least if least < -length else most
    return IndexError(f"index {wrong} is out of bounds for axis {axis} with size {length}")


@contextmanager
def deferred() -> Iterator[list[Check]]:
    """Collect on this thread the checks that kernels require on a GPU, for the length of the block."""
    before = getattr(_here, "found", None)
    found: list[Check] = []
    _here.found = found
    try:
        yield found
    finally:
        _here.found = before
