"""What numba compiles for convolutions in fewer products (see `winograd`): tiles of 4 by 4 elements, and back.

Imported by `loops` alone. A step takes eight tiles side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from .simd import FLOAT, Lanes, fill, int_of, pair, splat, woven
from .windows import LANES

_VECTOR = ir.VectorType(FLOAT, LANES)
_images = types.Array(types.float32, 4, "C", readonly=True)
_tiles = types.Array(types.float32, 3, "A")
_bias = types.Array(types.float32, 1, "C", readonly=True)
_lines = types.Array(types.float32, 2, "C")
_result = types.Array(types.float32, 4, "C")
_int = types.int64


def _loop(result: Any, *signature: Any) -> Any:
    return njit(result(*signature), nogil=True, cache=True, error_model="numpy", boundscheck=False)


# -- one step ------------------------------------------------------------------------------------------------------


Four = list[Any]


def _input_side(b: Any, d: Four) -> Four:
    return [b.fsub(d[0], d[2]), b.fadd(d[1], d[2]), b.fsub(d[2], d[1]), b.fsub(d[1], d[3])]


def _output_side(b: Any, m: Four) -> list[Any]:
    return [b.fadd(b.fadd(m[0], m[1]), m[2]), b.fsub(b.fsub(m[1], m[2]), m[3])]


def _gradient_side(b: Any, y: list[Any]) -> Four:
    return [y[0], b.fadd(y[0], y[1]), b.fsub(y[0], y[1]), b.fneg(y[1])]


def _squares(b: Any, side: Callable[[Any, list[Any]], list[Any]], rows: list[list[Any]]) -> list[list[Any]]:
    """A side's sums down the columns of a square, then along its rows."""
    down = zip(*[side(b, list(column)) for column in zip(*rows, strict=True)], strict=True)
    return [side(b, list(row)) for row in down]


def _spread(side: Callable[[Any, list[Any]], list[Any]], size: int) -> Any:
    """A step from lines of an image, of which each tile takes a square of this size, to the tiles' sixteen places."""

    @intrinsic
    def step(typing: Any, lines: Any, at: Any, line: Any, tiles: Any, to: Any, pitch: Any) -> Any:
        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            source = Lanes(context, b, signature.args[0], args[0], args[1])
            target = Lanes(context, b, signature.args[3], args[3], args[4])
            rows: list[list[Any]] = []
            for row in range(size):
                start = b.mul(args[2], int_of(row))
                pairs = [pair(b, source, b.add(start, int_of(two))) for two in range(0, size, 2)]
                rows.append([one for pair in pairs for one in pair])
            for number, value in enumerate([one for row in _squares(b, side, rows) for one in row]):
                target.store(b.mul(args[5], int_of(number)), value)
            return context.get_dummy_value()

        return types.void(lines, _int, _int, tiles, _int, _int), code

    return step


_step_in, _step_back = _spread(_input_side, 4), _spread(_gradient_side, 2)


@intrinsic
def _step_out(typing: Any, tiles: Any, at: Any, pitch: Any, bias: Any, out: Any, to: Any, line: Any, count: Any) -> Any:
    """From the tiles' sixteen places to two lines of an image. Returns other than 0 if one of the first `count` tiles
    has what is not finite (or so large that their sum is not)."""

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        source = Lanes(context, b, signature.args[0], args[0], args[1])
        target = Lanes(context, b, signature.args[4], args[4], args[5])
        places = [source.load(b.mul(args[2], int_of(number))) for number in range(16)]
        squares = _squares(b, _output_side, [places[row : row + 4] for row in range(0, 16, 4)])
        bias = splat(b, args[3])
        squares = [[b.fadd(one, bias) for one in row] for row in squares]
        for offset, (even, odd) in zip((int_of(0), args[6]), squares, strict=True):
            target.store(offset, woven(b, even, odd))
        (first, second), (third, fourth) = squares
        total = b.fadd(b.fadd(first, second), b.fadd(third, fourth))
        off = b.fcmp_unordered("une", b.fsub(total, total), ir.Constant(_VECTOR, [0.0] * LANES))
        integers = ir.VectorType(ir.IntType(64), LANES)
        there = b.icmp_signed("<", ir.Constant(integers, list(range(LANES))), splat(b, args[7]))
        found = b.bitcast(b.and_(off, there), ir.IntType(LANES))
        return b.zext(found, ir.IntType(64))

    return _int(tiles, _int, _int, types.float32, out, _int, _int, _int), code


# -- all steps of some images --------------------------------------------------------------------------------------


@_loop(types.void, _images, _int, _int, _int, _int, _int, _lines, _tiles)
def tiles_in(x: Any, first: Any, rows: Any, across: Any, top: Any, left: Any, lines: Any, out: Any) -> None:
    """What the inputs of some rows of tiles are multiplied as: (16, channels, images * rows * across) and spare."""
    line, pitch = lines.shape[1], out.strides[0] // 4
    lines[:] = 0
    for c in range(x.shape[1]):
        for i in range(x.shape[0]):
            fill(x, i, c, 2 * first - top, len(lines), left, lines, 0, line)
            for r in range(rows):
                to = c * (out.strides[1] // 4) + (i * rows + r) * across
                for j in range(0, across, LANES):
                    _step_in(lines, 2 * r * line + 2 * j, line, out, to + j, pitch)


@_loop(types.void, _images, _int, _int, _int, _lines, _tiles)
def tiles_back(grad: Any, first: Any, rows: Any, across: Any, lines: Any, out: Any) -> None:
    """What the gradients of some rows of tiles are multiplied as."""
    line, pitch = lines.shape[1], out.strides[0] // 4
    lines[:] = 0
    for c in range(grad.shape[1]):
        for i in range(grad.shape[0]):
            fill(grad, i, c, 2 * first, len(lines), 0, lines, 0, line)
            for r in range(rows):
                to = c * (out.strides[1] // 4) + (i * rows + r) * across
                for j in range(0, across, LANES):
                    _step_back(lines, 2 * r * line + 2 * j, line, out, to + j, pitch)


@_loop(_int, _tiles, _bias, _int, _int, _int, _lines, _result)
def tiles_out(tiles: Any, bias: Any, first: Any, rows: Any, across: Any, lines: Any, out: Any) -> Any:
    """The sum of products of each tile, as four elements of the result. Other than 0 if one may not be finite."""
    found, pitch = 0, tiles.strides[0] // 4
    height, width = out.shape[2:]
    last = min(height, 2 * (first + rows)) * width  # of an image: where the next piece of it begins
    for c in range(out.shape[1]):
        for i in range(out.shape[0]):
            for r in range(rows):
                at = c * (tiles.strides[1] // 4) + (i * rows + r) * across
                y = 2 * (first + r)
                for j in range(0, across, LANES):
                    count = min(LANES, across - j)
                    # Whole, or over what is written next: the other line, the next ones.
                    whole = 2 * (j + LANES) <= width or (across <= LANES and (y + 1) * width + 2 * LANES <= last)
                    if whole and y + 1 < height:
                        to = ((i * out.shape[1] + c) * height + y) * width + 2 * j
                        found |= _step_out(tiles, at + j, pitch, bias[c], out, to, width, count)
                        continue
                    found |= _step_out(tiles, at + j, pitch, bias[c], lines, 0, lines.shape[1], count)
                    for k in range(min(2, height - y)):
                        for n in range(min(2 * count, width - 2 * j)):
                            out[i, c, y + k, 2 * j + n] = lines[k, n]
    return found


LOOPS = {one.__name__: one for one in (tiles_in, tiles_back, tiles_out)}
