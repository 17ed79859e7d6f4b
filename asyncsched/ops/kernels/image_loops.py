"""What numba compiles for images: pooling, and gradients: of it, of relu, and of weights of few channels.

Imported by `loops` alone.

Rows of images are short, so an image lies in lines with zeros around and is taken as one run, over their ends; what a
run finds there is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .simd import Lanes, added, copy, fill, int_of, pair, woven
from .windows import RUN, WINDOWS

_planes = types.Array(types.float32, 3, "C", readonly=True)
_planes_out = types.Array(types.float32, 3, "C")
_images = types.Array(types.float32, 4, "C", readonly=True)
_images_out = types.Array(types.float32, 4, "C")
_values = types.Array(types.float32, 1, "C", readonly=True)
_run = types.Array(types.float32, 1, "C")
_int = types.int64


def _loop(*signature: Any) -> Any:
    return njit(types.void(*signature), nogil=True, cache=True, error_model="numpy")


# -- weights of few channels ---------------------------------------------------------------------------------------


def _taps(b: Any, context: Any, array_type: Any, lines: Any, at: Any, line: Any) -> list[Any]:
    """What the nine places of a window see, for some windows side by side."""
    seen = Lanes(context, b, array_type, lines, at, RUN)
    return [seen.load(b.add(b.mul(line, int_of(k // 3)), int_of(k % 3))) for k in range(9)]


@intrinsic
def _weigh_all(typing: Any, lines: Any, at: Any, line: Any, run: Any, steps: Any, sums: Any, to: Any) -> Any:
    """Adds what a run of gradients finds in one channel, by places of a window and by lanes."""

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        result = Lanes(context, b, signature.args[5], args[5], args[6], RUN)
        kept = [cgutils.alloca_once_value(b, result.load(int_of(k * RUN))) for k in range(9)]
        with cgutils.for_range(b, args[4]) as loop:
            here = b.mul(loop.index, int_of(RUN))
            given = Lanes(context, b, signature.args[3], args[3], here, RUN).load(int_of(0))
            taps = _taps(b, context, signature.args[0], args[0], b.add(args[1], here), args[2])
            for one, seen in zip(kept, taps, strict=True):
                b.store(added(b, b.load(one), seen, given), one)
        for k, one in enumerate(kept):
            result.store(int_of(k * RUN), b.load(one))
        return context.get_dummy_value()

    return types.void(lines, _int, _int, run, _int, sums, _int), code


@_loop(_images, _images, _int, _int, _int, _int, _run, _run, _images_out)
def weigh_few(grad: Any, x: Any, first: Any, rows: Any, top: Any, left: Any, lines: Any, run: Any, out: Any) -> None:
    """What some rows of gradients add to the gradient of the weight: (out channels, channels, 9, lanes)."""
    width, channels = grad.shape[3], x.shape[1]
    line, plane = width + 2, (rows + 2) * (width + 2)
    lines[:] = 0
    run[:] = 0
    for i in range(len(x)):
        for c in range(channels):
            fill(x, i, c, first - top, rows + 2, left, lines, c * plane, line)
        for o in range(grad.shape[1]):
            start = ((i * grad.shape[1] + o) * grad.shape[2] + first) * width
            for r in range(rows):
                copy(grad, start + r * width, run, r * line, width)
            for c in range(channels):
                steps = (rows * line + RUN - 1) // RUN
                _weigh_all(lines, c * plane, line, run, steps, out, (o * channels + c) * 9 * RUN)


# -- pooling -------------------------------------------------------------------------------------------------------


def _larger(b: Any, one: Any, other: Any) -> Any:
    """The larger of each two, or NaN."""
    taken = b.or_(b.fcmp_ordered(">", other, one), b.fcmp_unordered("uno", other, other))
    return b.select(taken, other, one)


@intrinsic
def _largest_some(typing: Any, x: Any, at: Any, line: Any, out: Any, to: Any) -> Any:
    """The largest elements of some windows side by side, of two by two: of rows first, as in the plain kernel."""

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        images = Lanes(context, b, signature.args[0], args[0], args[1], WINDOWS)
        result = Lanes(context, b, signature.args[3], args[3], args[4], WINDOWS)
        upper, lower = [pair(b, images, offset) for offset in (int_of(0), args[2])]
        columns = [_larger(b, *both) for both in zip(upper, lower, strict=True)]
        result.store(int_of(0), _larger(b, *columns))
        return context.get_dummy_value()

    return types.void(x, _int, _int, out, _int), code


@_loop(_planes, _planes_out)
def max_pool2d(x: Any, out: Any) -> None:
    """The largest element of windows of two by two, side by side; at least `WINDOWS` in a row."""
    height, width = x.shape[1:]
    for p in range(len(x)):
        for i in range(out.shape[1]):
            for step in range(0, out.shape[2], WINDOWS):
                j = min(step, out.shape[2] - WINDOWS)  # some again at the end, so that these are as many
                at = (p * height + 2 * i) * width + 2 * j
                _largest_some(x, at, width, out, (p * out.shape[1] + i) * out.shape[2] + j)


@intrinsic
def _give_some(typing: Any, x: Any, at: Any, line: Any, y: Any, grad: Any, to: Any, out: Any) -> Any:
    """The gradients of some windows side by side, of two by two elements: to the first of the largest, and nothing to
    the others. Returns other than 0 if there is NaN."""

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        images, result = [Lanes(context, b, signature.args[k], args[k], args[1], WINDOWS) for k in (0, 6)]
        largest, gradient = [Lanes(context, b, signature.args[k], args[k], args[5], WINDOWS) for k in (3, 4)]
        nothing = ir.Constant(ir.VectorType(ir.FloatType(), WINDOWS), [0.0] * WINDOWS)
        peak, given, given_yet = largest.load(int_of(0)), gradient.load(int_of(0)), None
        for offset in (int_of(0), args[2]):
            parts = []
            for one in pair(b, images, offset):
                equal = b.fcmp_ordered("==", one, peak)
                here = equal if given_yet is None else b.and_(equal, b.not_(given_yet))
                given_yet = equal if given_yet is None else b.or_(given_yet, equal)
                parts.append(b.select(here, given, nothing))
            result.store(offset, woven(b, *parts))
        return b.zext(b.bitcast(b.not_(given_yet), ir.IntType(WINDOWS)), ir.IntType(64))

    return _int(x, _int, _int, y, grad, _int, out), code


@njit(error_model="numpy")
def _give_last(x: Any, at: Any, line: Any, gradient: Any, out: Any) -> None:
    """The gradient of a window to its last NaN."""
    for k in (at + line + 1, at + line, at + 1, at):
        if x[k] != x[k]:
            out[k] = gradient
            return


@_loop(_planes, _planes, _planes, _planes_out)
def max_pool2d_backward(x: Any, y: Any, grad: Any, out: Any) -> None:
    """The gradient of windows of two by two, side by side; at least `WINDOWS` in a row."""
    height, width = x.shape[1:]
    images, gradients, largest, result = x.reshape(-1), grad.reshape(-1), y.reshape(-1), out.reshape(-1)
    if height % 2 or width % 2:
        out[:] = 0
    for p in range(len(x)):
        for i in range(y.shape[1]):
            for step in range(0, y.shape[2], WINDOWS):
                j = min(step, y.shape[2] - WINDOWS)  # some again at the end, so that these are as many
                at, of = (p * height + 2 * i) * width + 2 * j, (p * y.shape[1] + i) * y.shape[2] + j
                if _give_some(x, at, width, y, grad, of, out):
                    for k in range(WINDOWS):
                        if largest[of + k] != largest[of + k]:
                            _give_last(images, at + 2 * k, width, gradients[of + k], result)


# -- what is not positive ------------------------------------------------------------------------------------------


@intrinsic
def _keep_some(typing: Any, grad: Any, y: Any, out: Any, at: Any) -> Any:
    """Gradients where the result was positive or NaN. All are read before any is written: `out` may be one of them."""

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        arrays = [Lanes(context, b, signature.args[k], args[k], args[3], RUN) for k in range(3)]
        given, value = arrays[0].load(int_of(0)), arrays[1].load(int_of(0))
        nothing = ir.Constant(ir.VectorType(ir.FloatType(), RUN), [0.0] * RUN)
        arrays[2].store(int_of(0), b.select(b.fcmp_unordered(">", value, nothing), given, nothing))
        return context.get_dummy_value()

    return types.void(grad, y, out, _int), code


@_loop(_values, _values, _run)
def relu_backward(grad: Any, y: Any, out: Any) -> None:
    """The gradient of relu."""
    whole = len(out) // RUN * RUN
    for k in range(0, whole, RUN):
        _keep_some(grad, y, out, k)
    for k in range(whole, len(out)):
        out[k] = np.float32(0) if y[k] <= 0 else grad[k]


LOOPS = {one.__name__: one for one in (weigh_few, max_pool2d, max_pool2d_backward, relu_backward)}
