"""What numba compiles for attention: both products, and the exponentials between them, some queries and keys at a time.

Imported by `loops` alone. Weights stay in the cache next to the processor, where a BLAS would write those of a whole
head and read them again; no maximum is subtracted, so what came before is never scaled anew (see `softmax`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .elementary import exp
from .exponentials import KEYS, LEAST, MOST, QUERIES
from .simd import FLOAT, Lanes, added, copy, int_of, splat

_f = np.float32
_LIBERTIES = {"reassoc", "contract", "arcp", "nsz"}  # as in `loops`
_LANES, _VECTORS = 16, 4  # sums of a step, for each query so many vectors: most of the 32 registers of AVX-512
_WIDE, _NARROW = _LANES * _VECTORS, _LANES * _VECTORS // 2
_given = types.Array(types.float32, 3, "A", readonly=True)
_result = types.Array(types.float32, 3, "A")
_int = types.int64


def _product(vectors: int) -> Any:
    """A step: adds some rows times a matrix of so many vectors of columns, or writes that."""

    @intrinsic
    def step(
        typing: Any, left: Any, at: Any, line: Any, right: Any, start: Any, pitch: Any, count: Any, out: Any, to: Any,
        along: Any, adds: Any,
    ) -> Any:  # fmt: skip
        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            def rows_of(array: int, at: Any, line: Any) -> list[Lanes]:
                places = [b.add(at, b.mul(line, int_of(row))) for row in range(QUERIES)]
                return [Lanes(context, b, signature.args[array], args[array], place, _LANES) for place in places]

            columns = [int_of(number * _LANES) for number in range(vectors)]
            rows, results = rows_of(0, args[1], args[2]), rows_of(7, args[8], args[9])
            matrix = Lanes(context, b, signature.args[3], args[3], args[4], _LANES)
            zero = ir.Constant(ir.VectorType(FLOAT, _LANES), [0.0] * _LANES)
            sums = [[cgutils.alloca_once_value(b, zero) for _ in columns] for _ in rows]
            with b.if_then(args[10]):
                for result, kept in zip(results, sums, strict=True):
                    for column, total in zip(columns, kept, strict=True):
                        b.store(result.load(column), total)
            with cgutils.for_range(b, args[6]) as loop:
                here = b.mul(loop.index, args[5])
                seen = [matrix.load(b.add(here, column)) for column in columns]
                for row, kept in zip(rows, sums, strict=True):
                    one = splat(b, row.one(loop.index), _LANES)
                    for column, total in zip(seen, kept, strict=True):
                        b.store(added(b, b.load(total), one, column), total)
            for result, kept in zip(results, sums, strict=True):
                for column, total in zip(columns, kept, strict=True):
                    result.store(column, b.load(total))
            return context.get_dummy_value()

        return types.void(left, _int, _int, right, _int, _int, _int, out, _int, _int, types.boolean), code

    return step


_wide, _narrow = _product(_VECTORS), _product(_VECTORS // 2)


@njit(error_model="numpy")
def _lay_out(k: Any, v: Any, head: Any, first: Any, count: Any, scale: Any, keys: Any, values: Any) -> None:
    """Some keys of a head as columns, times the scale, and their values as rows; 0 where there are no more."""
    for left in range(0, KEYS, 16):
        some = min(16, count - left)
        for e in range(len(keys)):
            for j in range(some):
                keys[e, left + j] = k[head, first + left + j, e] * scale
            for j in range(max(some, 0), 16):
                keys[e, left + j] = 0
    for j in range(count):
        start = head * (v.strides[0] // 4) + (first + j) * (v.strides[1] // 4)
        copy(v, start, values, j * values.shape[1], v.shape[2])


@njit(fastmath=_LIBERTIES, error_model="numpy")
def _exponentials(weights: Any, row: Any, count: Any) -> Any:
    """In place, 0 from some key on; returns their sum."""
    total, line = _f(0), weights[row, :count]
    for j in range(count):
        e = exp(line[j])
        line[j] = e
        total += e
    weights[row, count:] = 0
    return total


def attention(q: Any, k: Any, v: Any, scale: Any, causal: Any, out: Any) -> Any:
    """Of some heads; how many sums of exponentials are no ordinary numbers, so that the result is of no use."""
    heads, length, width = q.shape
    line, tiles, columns = q.strides[1] // 4, -(-length // QUERIES), -(-v.shape[2] // _NARROW) * _NARROW
    weights, keys = np.empty((QUERIES, KEYS), np.float32), np.empty((width, KEYS), np.float32)
    values = np.zeros((KEYS, columns), np.float32)
    sums, totals = np.empty((tiles * QUERIES, columns), np.float32), np.empty(tiles * QUERIES, np.float32)
    odd = 0
    for h in range(heads):
        totals[:] = 0
        for first in range(0, k.shape[1], KEYS):
            count = min(KEYS, k.shape[1] - first)
            _lay_out(k, v, h, first, count, scale, keys, values)
            for tile in range(first // QUERIES if causal else 0, tiles):
                i = min(tile * QUERIES, length - QUERIES)  # the last one has some of the rows before, once more
                for c in range(0, KEYS, _WIDE):
                    _wide(q, h * (q.strides[0] // 4) + i * line, line, keys, c, KEYS, width, weights, c, KEYS, False)
                for r in range(QUERIES):
                    seen = max(0, min(count, i + r + 1 - first)) if causal else count
                    totals[tile * QUERIES + r] += _exponentials(weights, r, seen)
                for c in range(0, columns, _WIDE):
                    to = tile * QUERIES * columns + c
                    if columns - c >= _WIDE:
                        _wide(weights, 0, KEYS, values, c, columns, count, sums, to, columns, first > 0)
                    else:
                        _narrow(weights, 0, KEYS, values, c, columns, count, sums, to, columns, first > 0)
        for tile in range(tiles):
            i = min(tile * QUERIES, length - QUERIES)
            for r in range(QUERIES):
                total = totals[tile * QUERIES + r]
                odd += not (total >= _f(LEAST) and total <= _f(MOST))
                factor = _f(1) / total
                for c in range(v.shape[2]):
                    out[h, i + r, c] = sums[tile * QUERIES + r, c] * factor
    return odd


_compiled = njit(
    _int(_given, _given, _given, types.float32, types.boolean, _result),
    nogil=True, cache=True, error_model="numpy", boundscheck=False,
)  # fmt: skip
# With fewer registers, or smaller ones, a BLAS is quicker.
LOOPS = {"attention": _compiled(attention)} if binding.get_host_cpu_features().get("avx512f") else {}
