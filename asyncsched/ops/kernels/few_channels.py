"""The gradient of 3 by 3 weights of few channels, a network's first ones, where numba compiles its loops.

As a matrix product it would be one of few columns, between copies that take as long: see `conv`. Here it is summed up
by lanes as the images are read. Rows of images are cut by shape alone, and gradients summed in one order, as there.

Not taken: the convolution itself as such a loop. `conv` takes 0.5 to 0.85 of its time since it writes results in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np

from . import compiled, conv
from .scratch import scratch
from .windows import RUN, Pair, Tile, Windows, even

_CHANNELS: Final = 5  # so many are no longer few
_RESULTS: Final = 2048  # results of a channel at a time, which stay in the first cache
_PARTS: Final = 16  # of all images, so that there is work for some threads
_WORK: Final = 2  # times what products take, for a multiplication


def conv2d_weight_grad(xp: Any, grad: Any, x: Any, *, shape: Any, out: Any, **options: Any) -> Any:
    """The gradient of the weight."""
    windows = Windows(shape[2:], **options)
    run = compiled.loop("weigh_few", xp, grad, x) if suits(windows, shape) else None
    if run is not None:
        cut = blocks(len(x), grad.shape[2:])
        sums = np.zeros((sums_for(shape, len(cut)), *shape[:2], 9, RUN), np.float32)
        work = partial(_weigh, run, grad, x, windows.padding)
        conv.share_sums(cut, sums, _WORK * grad.size * prod(shape[1:]), work)
        np.sum(sums, (0, -1), out=out.reshape(*shape[:2], 9))
        if np.isfinite(out).all():  # else zeros at the ends of rows may have met what is infinite
            return out
    return conv.conv2d_weight_grad(xp, grad, x, shape=shape, out=out, **options)


def suits(windows: Windows, weight: Sequence[int]) -> bool:
    """Whether images are convolved here with a weight of this shape."""
    return 0 < weight[1] < _CHANNELS and windows.kernel == (3, 3) and windows.stride == windows.dilation == (1, 1)


def blocks(images: int, count: Sequence[int]) -> list[Tile]:
    """All results, in blocks: some images, and some rows of results on each."""
    rows = even(count[0], max(1, _RESULTS // (count[1] + 2)))
    return [Tile(some, lines) for some in even(images, -(-images // _PARTS)) for lines in rows]


def sums_for(weight: Sequence[int], number: int) -> int:
    """How many sums the gradient of a weight is added up in, of so many blocks: each has as many as there are lanes."""
    return conv.sums_for((*weight, RUN), number, 4)


def elements(weight: Sequence[int], count: Sequence[int]) -> int:
    """Of all that is made in between for one block."""
    rows = min(count[0], max(1, _RESULTS // (count[1] + 2)))
    return (weight[1] * (rows + 2) + rows) * (count[1] + 2) + 3 * RUN + weight[0]


def elements_weight_grad(weight: Sequence[int], images: int, count: Sequence[int]) -> int:
    """The same for the gradient of the weight."""
    return elements(weight, count) + sums_for(weight, len(blocks(images, count))) * RUN * prod(weight)


def _weigh(run: Any, grad: Any, x: Any, padding: Pair, part: tuple[Sequence[Tile], Any]) -> None:
    cut, total = part
    for tile in cut:
        first, rows, lines, room = _block(tile, x.shape[1], grad.shape[3])
        run(grad[tile.images], x[tile.images], first, rows, *padding, lines, room, total)


def _block(tile: Tile, channels: int, width: int) -> tuple[int, int, Any, Any]:
    """The first row of results, how many; room for the lines that they are of, and for a run of results."""
    rows, line = tile.rows.stop - tile.rows.start, width + 2
    lines = scratch(np, 0, (channels * (rows + 2) * line + 2 * RUN,), np.float32)
    return tile.rows.start, rows, lines, scratch(np, 1, (rows * line + RUN,), np.float32)
