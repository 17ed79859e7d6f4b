"""Windows on images on a CUDA card: one kernel for each way to pass over them, which CuPy compiles at its first run.

On the host a pass over memory is expensive, so windows are processed in tiles that stay in a cache, with many short
steps. On a card, a launch takes as long as passing over some megabytes. So tiles are large (`windows.CARD_COLUMNS`),
and each step is one launch. Each thread makes one element of the result from the elements that it needs. So no two
threads write to one place, no sum depends on their order, no padding is ever stored, and no zero of the padding is
multiplied by a weight.

Rejected: CuPy's own functions (padding, strided copies, a sum over the positions of a window), with 4 to 11 launches
for each of these and two to four times the memory; products of a batch of small matrices, one for each image, for which
CuPy first makes three arrays of pointers, by a launch each.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from .windows import Windows

_SHORT = 1 << 31  # elements; with fewer, positions are counted in 32 bits, which a card divides in half the time
# The geometry of windows on images: "rows" of them from the "first" one on, each "across" long; and the kernel, stride,
# padding and dilation, each "down" the rows and "along" a row.
_FORM = (
    "images channels height width rows across first kernel_down kernel_along stride_down stride_along pad_down"
    " pad_along apart_down apart_along"
)
_ARGUMENTS = ", ".join(f"int32 {name}" for name in _FORM.split())

# Kernels by name: their inputs beside the geometry, and the code for an element `y` of the result. `Place` is the type
# of element counts, `Sum` that of sums.
_KERNELS = {
    # The elements in windows, as columns: (channels, positions in a window, images, rows, across).
    "unfold": (
        "raw T x",
        """
        Place at = i;
        const Place q = at % across; at /= across;
        const Place p = first + at % rows; at /= rows;
        const Place image = at % images; at /= images;
        const Place b = at % kernel_along; at /= kernel_along;
        const Place a = at % kernel_down, channel = at / kernel_down;
        const Place h = p * stride_down + a * apart_down - pad_down, w = q * stride_along + b * apart_along - pad_along;
        const bool inside = h >= 0 && h < height && w >= 0 && w < width;
        y = inside ? x[((image * channels + channel) * height + h) * width + w] : T(0);
        """,
    ),
    # The transpose: columns added at their positions; to the present values if there is `more`.
    "fold": (
        "raw T x, int32 more",
        """
        Place at = i;
        const Place w = at % width + pad_along; at /= width;
        const Place h = at % height + pad_down; at /= height;
        const Place channel = at % channels, image = at / channels;
        Sum total = more ? Sum(y) : Sum(0);
        for (Place a = 0; a < kernel_down; ++a) {
            const Place down = h - a * apart_down, p = down / stride_down - first;
            if (down < 0 || down % stride_down || p < 0 || p >= rows) continue;
            for (Place b = 0; b < kernel_along; ++b) {
                const Place along = w - b * apart_along, q = along / stride_along;
                if (along < 0 || along % stride_along || q >= across) continue;
                const Place column = (channel * kernel_down + a) * kernel_along + b;
                total += Sum(x[((column * images + image) * rows + p) * across + q]);
            }
        }
        y = T(total);
        """,
    ),
    # The largest element of each window; NaN if it has one.
    "pool": (
        "raw T x",
        """
        Place at = i;
        const Place q = at % across; at /= across;
        const Place p = at % rows, image = at / rows;
        bool some = false;
        Sum largest = Sum(0);
        for (Place a = 0; a < kernel_down; ++a) {
            const Place h = p * stride_down + a - pad_down;
            if (h < 0 || h >= height) continue;
            for (Place b = 0; b < kernel_along; ++b) {
                const Place w = q * stride_along + b - pad_along;
                if (w < 0 || w >= width) continue;
                const Sum one = Sum(x[(image * height + h) * width + w]);
                if (!some || one > largest || one != one) largest = one;
                some = true;
            }
        }
        y = T(largest);
        """,
    ),
    # The gradient of each window, for the chosen element: the first of the largest, but the last NaN.
    "pool_backward": (
        "raw T x, raw T found, raw T grad",
        """
        Place at = i;
        const Place w = at % width + pad_along; at /= width;
        const Place h = at % height + pad_down, image = at / height;
        const Place least_p = h < kernel_down ? 0 : (h - kernel_down) / stride_down + 1;
        const Place least_q = w < kernel_along ? 0 : (w - kernel_along) / stride_along + 1;
        const Sum own = Sum(x[i]);
        Sum total = Sum(0);
        for (Place p = least_p; p < rows && p * stride_down <= h; ++p) {
            for (Place q = least_q; q < across && q * stride_along <= w; ++q) {
                const Place window = (image * rows + p) * across + q;
                const Sum largest = Sum(found[window]);
                if (own != largest && own == own) continue;
                bool equal = false;
                Place chosen = -1;
                for (Place a = 0; a < kernel_down && !equal; ++a) {
                    const Place v = p * stride_down + a - pad_down;
                    if (v < 0 || v >= height) continue;
                    for (Place b = 0; b < kernel_along && !equal; ++b) {
                        const Place u = q * stride_along + b - pad_along;
                        if (u < 0 || u >= width) continue;
                        const Place place = (image * height + v) * width + u;
                        const Sum one = Sum(x[place]);
                        equal = one == largest;
                        if (equal || one != one) chosen = place;
                    }
                }
                if (chosen == i) total += Sum(grad[window]);
            }
        }
        y = T(total);
        """,
    ),
}


def unfold(xp: Any, windows: Windows, x: Any, rows: slice, across: int) -> Any:
    """Some rows of windows, each `across` long, on all images: (inputs of a window, windows)."""
    count = rows.stop - rows.start
    out = xp.empty((x.shape[1] * windows.kernel[0] * windows.kernel[1], len(x) * count * across), x.dtype)
    _run(xp, "unfold", windows, (x,), out, (*x.shape, count, across, rows.start))
    return out


def fold(xp: Any, windows: Windows, parts: Any, rows: slice, across: int, out: Any) -> None:
    """Add columns at their positions on C-contiguous images `out`; the first columns overwrite `out`."""
    form = (*out.shape, rows.stop - rows.start, across, rows.start)
    _run(xp, "fold", windows, (parts, int(rows.start > 0)), out, form)


def max_pool2d(xp: Any, windows: Windows, x: Any, out: Any) -> None:
    """The largest element of each window of images (..., height, width), in a C-contiguous array."""
    _run(xp, "pool", windows, (x,), out, (*_planes(x), *out.shape[-2:], 0))


def max_pool2d_backward(xp: Any, windows: Windows, x: Any, y: Any, grad: Any, out: Any) -> None:
    """The gradient of each window, given to the element that was chosen from it."""
    _run(xp, "pool_backward", windows, (x, y, grad), out, (*_planes(x), *y.shape[-2:], 0))


def _planes(x: Any) -> tuple[int, int, int, int]:
    height, width = x.shape[-2:]
    return x.size // max(1, height * width), 1, height, width


def _run(xp: Any, name: str, windows: Windows, reads: tuple[Any, ...], out: Any, form: tuple[int, ...]) -> None:
    """Launch a kernel that writes to all of a C-contiguous array; no launch for an array without elements.

    `form` has the first numbers of `_FORM`: the shape of the images, and which rows of windows there are.
    """
    if not out.size:
        return
    flat = [xp.ascontiguousarray(a).reshape(-1) if isinstance(a, xp.ndarray) else a for a in reads]
    short = max(out.size, *[a.size for a in flat if isinstance(a, xp.ndarray)]) < _SHORT
    _kernel(xp, name, short, out.dtype == np.float16)(
        *flat, *form, *[n for pair in windows for n in pair], out.reshape(-1)
    )


@lru_cache(maxsize=32)
def _kernel(xp: Any, name: str, short: bool, half: bool) -> Any:
    """One of the kernels, for CuPy. It adds halves up in single precision."""
    reads, lines = _KERNELS[name]
    types = f"typedef {'int' if short else 'long long'} Place; typedef {'float' if half else 'T'} Sum;"
    return xp.ElementwiseKernel(f"{reads}, {_ARGUMENTS}", "T y", types + lines, f"asyncsched_{name}", no_return=True)
