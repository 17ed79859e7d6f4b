"""Vectors in the loops that numba compiles for images: steps in LLVM's own language. Imported by those loops alone.

LLVM makes vectors of none of these loops by itself: rows of images are short, and lie apart. So a step of some lanes is
written out; of those it makes what a processor has. (Numba keeps what it compiled by the file that a loop is in: who
changes this one touches theirs.)
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .windows import LANES

FLOAT = ir.FloatType()


class Lanes:
    """Vectors that lie in an array from some place on."""

    def __init__(self, context: Any, builder: Any, array_type: Any, array: Any, at: Any, count: int = LANES) -> None:
        self.builder, self.count = builder, count
        self.start = builder.gep(context.make_array(array_type)(context, builder, array).data, [at])

    def _at(self, offset: Any) -> Any:
        return self.builder.gep(self.start, [offset])

    def load(self, offset: Any) -> Any:
        vector = ir.VectorType(FLOAT, self.count).as_pointer()
        return self.builder.load(self.builder.bitcast(self._at(offset), vector), align=4)

    def one(self, offset: Any) -> Any:
        return self.builder.load(self._at(offset))

    def store(self, offset: Any, value: Any) -> None:
        self.builder.store(value, self.builder.bitcast(self._at(offset), value.type.as_pointer()), align=4)


def int_of(value: int) -> Any:
    return ir.Constant(ir.IntType(64), value)


def mixed(builder: Any, a: Any, b: Any, places: list[int]) -> Any:
    """A vector of what two have at some places, counted through both."""
    mask = ir.Constant(ir.VectorType(ir.IntType(32), len(places)), places)
    return builder.shuffle_vector(a, b, mask)


def pair(builder: Any, line: Lanes, at: Any) -> tuple[Any, Any]:
    """The even and the odd elements of twice as many as there are lanes."""
    low, high = line.load(at), line.load(builder.add(at, int_of(line.count)))
    return tuple([mixed(builder, low, high, list(range(one, 2 * line.count, 2))) for one in (0, 1)])


def woven(builder: Any, even: Any, odd: Any) -> Any:
    """The way back, as one vector."""
    count = even.type.count
    return mixed(builder, even, odd, [place for lane in range(count) for place in (lane, lane + count)])


def splat(builder: Any, value: Any, count: int = LANES) -> Any:
    """A vector of one number."""
    undefined = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
    one = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
    return mixed(builder, one, undefined, [0] * count)


def added(builder: Any, total: Any, one: Any, other: Any) -> Any:
    """The total and a product, in one step where a processor has that."""
    return builder.fadd(total, builder.fmul(one, other, flags=("contract",)), flags=("contract",))


@intrinsic
def copy(typing: Any, source: Any, at: Any, target: Any, to: Any, count: Any) -> Any:
    """So many elements from one array to another."""

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        start = Lanes(context, b, signature.args[0], args[0], args[1]).start
        there = Lanes(context, b, signature.args[2], args[2], args[3]).start
        cgutils.raw_memcpy(b, there, start, args[4], 4)
        return context.get_dummy_value()

    return types.void(source, types.int64, target, types.int64, types.int64), code


@njit(error_model="numpy")
def fill(
    images: Any, number: Any, channel: Any, first: Any, count: Any, left: Any, lines: Any, to: Any, line: Any
) -> None:
    """So many lines of an image from the first on, where it has them, from place `left` on in each."""
    height, width = images.shape[2:]
    start = (number * images.shape[1] + channel) * height
    for y in range(max(first, 0), min(first + count, height)):
        copy(images, (start + y) * width, lines, to + (y - first) * line + left, width)
