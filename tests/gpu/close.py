"""When a result of CuPy agrees with NumPy's: exactly where nothing is rounded, else to some last bits."""

from __future__ import annotations

from typing import Any

import numpy as np

# Libraries differ in the last bits of a function; of a sum as far as its terms are large.
ULPS = 32


def tolerance(dtype: np.dtype[Any]) -> float:
    return ULPS * float(np.finfo(dtype).eps)


def differs(got: Any, expected: Any, magnitude: Any = None) -> str | None:
    """What is different; None if they agree.

    Args:
        got, expected: arrays on the host.
        magnitude: the same result with all terms made positive, where they may cancel each other.
    """
    expected = np.asarray(expected)
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return f"{got.dtype} {got.shape} instead of {expected.dtype} {expected.shape}"
    if expected.dtype.kind not in "fc":
        return None if np.array_equal(got, expected) else f"{got.tolist()} instead of {expected.tolist()}"
    near = tolerance(expected.dtype)
    tiny = float(np.finfo(expected.dtype).smallest_normal) if expected.real.itemsize == 4 else 0.0  # CuPy: -ftz=true
    with np.errstate(all="ignore"):
        scale = np.maximum(np.abs(expected), 0 if magnitude is None else np.abs(magnitude))
        bad = ~(
            (np.abs(got - expected) <= near * scale + tiny) | (got == expected) | (np.isnan(got) & np.isnan(expected))
        )
        if expected.dtype.kind == "c":  # which part of an infinite complex number is what, nobody promises
            bad &= np.isfinite(expected)
    if not bad.any():
        return None
    place = np.unravel_index(np.argmax(bad), bad.shape)
    return f"{np.count_nonzero(bad)} of {bad.size} elements, as {got[place]} instead of {expected[place]}"


def strides(array: Any) -> tuple[int, ...]:
    """The strides that matter: none of an empty array, and none of an axis of length one."""
    return tuple([s for s, n in zip(array.strides, array.shape, strict=True) if n > 1]) if array.size else ()
