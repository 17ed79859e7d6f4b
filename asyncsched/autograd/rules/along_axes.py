"""Derivatives of reductions, cumulations, statistics and products that sum.

`call.options` has the functions' own options. Derivatives of `cov`, `corrcoef` and `topk` follow from the operations
that they consist of.
"""

from __future__ import annotations

from math import nan, prod
from string import ascii_letters
from typing import Any, cast

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ...ops.kernels.order_statistics import parts_of, place_of
from ...ops.kernels.products import einsum_letters, tensordot_axes
from ...ops.kernels.reduce import MANY, reduced_axes, rows_per_piece
from ...tensors import functions as f
from ...tensors.functions._common import known_shape, op
from ...tensors.handles import runtime_of
from ...tensors.tensor import Tensor, listed
from .common import Rules, along, in_shape, narrow, reordered, scatter, summed, wide


def reduced_of(call: Any) -> tuple[int, ...]:
    """The axes that a call reduces, none negative."""
    return reduced_axes(call.options.get("axis"), len(call.metas[0].shape))


def spread(g: Tensor, call: Any) -> Tensor:
    """A tensor of the result's shape, with the reduced axes at length one, so that it broadcasts."""
    axes, shape = reduced_of(call), call.metas[0].shape
    kept = tuple([1 if axis in axes else length for axis, length in enumerate(shape)])
    return g if g.shape == () else in_shape(g, kept)


def full(g: Tensor, call: Any) -> Tensor:
    """The gradient repeated to the operand's shape: a view, if that is known."""
    if call.unknown is not None:
        return spread(g, call) * f.ones_like(call.unknown)
    return f.broadcast_to(spread(g, call), call.metas[0].shape)


def _count(call: Any) -> int:
    """How many elements are reduced to one."""
    return prod([call.metas[0].bound[axis] for axis in reduced_of(call)])


def per_element(g: Tensor, call: Any) -> Tensor:
    """The gradient over the number of elements that are reduced to one, less the correction. NumPy stops at 0."""
    correction, g = call.options.get("correction", 0), wide(g)
    if call.unknown is None:  # the quotient is a Python number: the count may be too large for half precision
        known = max(_count(call) - correction, 0)
        return g * (1 / known if known else nan)
    ones = f.ones_like(call.unknown, dtype=g.dtype)
    count: Tensor = f.sum(ones, axis=reduced_of(call), keepdims=call.options.get("keepdims", False)) - correction
    return g / count


def _extreme(g: Tensor, x: Tensor, out: Tensor, call: Any) -> Tensor:
    """The gradient goes to the extreme elements, in equal shares.

    If all axes are reduced and an element is NaN, it goes to the NaN elements. If some axes are reduced, a NaN makes
    the gradient NaN. Both as in PyTorch.
    """
    mask = x == spread(out, call)
    if call.options.get("axis") is not None:
        return shared(g, mask, call) * mask
    mask = mask | f.isnan(x)
    return f.where(mask, shared(g, mask, call), 0)


def shared(g: Tensor, mask: Tensor, call: Any) -> Tensor:
    """The gradient of each result over the number of its elements in the mask, ready to be broadcast to these."""
    count = f.count_nonzero(mask, axis=reduced_of(call), keepdims=call.options.get("keepdims", False))
    return spread(narrow(g / count, g), call)


def divisor(root: Tensor, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """A root of a sum of powers of `x` along axes, to divide by: 1 where all of `x` is 0.

    NaN where the powers were too large or too small for the dtype, so that no gradient is a wrong 0.
    """
    lost = f.any(x, axis=axes, keepdims=True) & ((root == 0) | f.isinf(root))
    return f.where(lost, nan, f.where(root == 0, 1, root))


def _root(name: str, g: Tensor, x: Tensor, out: Tensor, deviations: Tensor, call: Any) -> Tensor:
    """The gradient of `std` or `nanstd`, from `g` over the number of elements; 0 where the root is 0."""
    if x.dtype == np.float16:  # the squares may be too large for it
        out = op(name, wide(x), **call.options)
    deviations = deviations / divisor(spread(out, call), deviations, reduced_of(call))
    return deviations * spread(g, call)


def _deviations(x: Tensor, call: Any) -> Tensor:
    x = wide(x)
    return x - f.mean(x, axis=reduced_of(call), keepdims=True)


def prod_gradient(g: Tensor, x: Tensor, call: Any) -> Tensor:
    """The product of all other elements, for each: those before it times those after it, so zeros do no harm."""
    axes, shape = reduced_of(call), call.metas[0].shape
    rest = tuple([axis for axis in range(len(shape)) if axis not in axes])
    order = rest + axes
    lines = f.permute_dims(x, order).reshape(*[shape[axis] for axis in rest], _count(call))
    others = _before(lines) * f.flip(_before(f.flip(lines, axis=-1)), axis=-1)
    return spread(g, call) * reordered(others.reshape(*[shape[axis] for axis in order]), order)


def _before(x: Tensor) -> Tensor:
    """For each element along the last axis, the product of the elements before it."""
    return f.cumulative_prod(x, axis=-1, include_initial=True)[..., :-1]


def _cumulated(g: Tensor, call: Any) -> tuple[Tensor, int]:
    """The gradient without that of an initial value; and the axis."""
    axis = normalize_axis_index(call.options.get("axis") or 0, len(call.metas[0].shape))
    return (g[along(axis, g.ndim, slice(1, None))] if call.options.get("include_initial") else g), axis


def _cumulative_sum(g: Tensor, call: Any) -> Tensor:
    g, axis = _cumulated(wide(g), call)
    return f.flip(f.cumulative_sum(f.flip(g, axis=axis), axis=axis), axis=axis)


def _cumulative_prod(g: Tensor, x: Tensor, call: Any) -> Tensor:
    g, axis = _cumulated(g, call)
    return op("cumulative_prod_gradient", x, wide(g), axis=axis)


def _cumulative_prod_composed(g: Tensor, x: Tensor, call: Any) -> Tensor:
    """The sum over all products from a position on, each without its factor. Its memory grows with the square."""
    g, axis = _cumulated(g, call)
    g, x = [f.expand_dims(f.moveaxis(part, axis, -1), axis=-2) for part in (g, x.astype(g.dtype))]
    *lead, _, n = known_shape(x, "cumulative_prod")
    factors = f.broadcast_to(x, (*lead, n, n))  # a line for each place
    here = f.tril(f.triu(f.ones_like(factors.detach(), dtype=bool)))
    found = f.sum(f.triu(g * f.cumulative_prod(f.where(here, 1, factors), axis=-1)), axis=-1)
    return f.moveaxis(found, -1, axis)


def _diff(g: Tensor, call: Any) -> Tensor:
    """The transpose of a difference: the difference of neighbours in the other direction, with zeros around."""
    n, axis, shape = call.options.get("n", 1), call.options.get("axis", -1), list(g.shape)
    if not shape[axis]:  # there were no neighbours
        return scatter(g, along(axis, g.ndim, slice(0, 0)), call.metas[0].shape)
    shape[axis] += 2 * n
    padded = scatter(g, along(axis, g.ndim, slice(n, -n)), tuple(shape))
    found = f.diff(padded, axis=axis, n=n)
    return -found if n % 2 else found


def _sort(g: Tensor, x: Tensor, call: Any) -> Tensor:
    order = op("argsort", x, **call.options)
    return op("scatter_along_axis", g, order, shape=call.metas[0].shape, axis=call.options.get("axis", -1))


def _matmul_first(g: Tensor, y: Tensor, call: Any) -> Tensor:
    g, y = _as_matrices(g, y, call)
    if y.ndim == 2 and (y.shape[1] or 0) >= MANY:
        return over_rows(g.mT, y.mT)
    return g @ y.mT


def _matmul_second(g: Tensor, x: Tensor, call: Any) -> Tensor:
    g, x = _as_matrices(g, x, call)
    ndim = len(call.metas[1].shape)
    if ndim <= 2 and x.ndim > 2:  # one product over all rows, instead of one for each matrix and their sum
        g, x = [part.reshape(prod(call.metas[0].shape[:-1]), part.shape[-1]) for part in (g, x)]
    found = over_rows(x, g)
    return f.squeeze(found, -1) if ndim == 1 else found


def over_rows(x: Tensor, y: Tensor) -> Tensor:
    """x^T y: of two matrices of real numbers accurate also over many rows."""
    if x.ndim == y.ndim == 2 and x.dtype == y.dtype and x.dtype.kind == "f":
        return op("linear_weight_grad", x, y)
    return x.mT @ y


def _as_matrices(g: Tensor, other: Tensor, call: Any) -> tuple[Tensor, Tensor]:
    """Both as matrices: `matmul` adds a dimension to each vector, and drops it from the result."""
    first, second = [len(meta.shape) for meta in call.metas]
    if second == 1:
        g, other = f.expand_dims(g, axis=-1), other if call.place else f.expand_dims(other, axis=-1)
    if first == 1:
        g, other = f.expand_dims(g, axis=-2), f.expand_dims(other, axis=0) if call.place else other
    return g, other


def _vecdot(g: Tensor, other: Tensor, call: Any) -> Tensor:
    """Move the summed axis of both operands to the end: `axis` counts in each operand's own dimensions."""
    axis, shape = call.options.get("axis", -1), call.metas[call.place].shape
    found = f.expand_dims(g, axis=-1) * f.moveaxis(other, axis, -1)
    extra = found.ndim - len(shape)
    if extra > 0:  # leading broadcast axes are summed first, so that the axis is the operand's
        found = summed(found, range(extra))
    return f.moveaxis(found, -1, normalize_axis_index(axis, len(shape)))


def _tensordot(g: Tensor, other: Tensor, call: Any) -> Tensor:
    """A `tensordot` over the axes that the other operand kept, put back in the order of this operand's axes."""
    place, ndims = call.place, [len(meta.shape) for meta in call.metas]
    summed = tensordot_axes(call.options.get("axes", 2), *ndims)
    first, second = [tuple([i for i in range(n) if i not in s]) for n, s in zip(ndims, summed, strict=True)]
    back = tuple([axis for _, axis in sorted(zip(summed[1 - place], summed[place], strict=True))])
    if place == 0:
        return reordered(f.tensordot(g, other, axes=(tuple(range(len(first), g.ndim)), second)), first + back)
    if len(first) == 1 and other.ndim == 2 and g.ndim < 3:
        found = over_rows(other if first == (0,) else other.mT, g if second else g[:, None])
        found = found if second else f.squeeze(found, -1)
    else:
        found = f.tensordot(other, g, axes=(first, tuple(range(len(first)))))
    return reordered(found, back + second)


def _dot(g: Tensor, other: Any, call: Any) -> Tensor:
    """The gradient of NumPy's `dot`: a product with a number if an operand has no axes, else a `tensordot`."""
    ndims = [len(getattr(meta, "shape", ())) for meta in call.metas]
    if not all(ndims):
        return cast(Tensor, g * other)
    return _tensordot(g, other, call._replace(options={"axes": ((-1,), (max(ndims[1] - 2, 0),))}))


def _einsum(g: Tensor, operands: tuple[Any, ...], call: Any) -> Tensor:
    """The sum of products of the gradient and the other operands, over the axes that this operand lacks.

    If it has an axis twice ("ii"), the second is a new axis of the gradient, joined to the first by a unit matrix.
    Along an axis that no other operand has, the gradient is constant.
    """
    terms, output = _letters(call)
    own, place = terms.pop(call.place), call.place
    factors: list[Any] = [g, *operands[:place], *operands[place + 1 :]]
    terms.insert(0, output)
    free = (letter for letter in ascii_letters if letter not in "".join([own, *terms]))
    wanted = ""
    for letter, length in zip(own, call.metas[place].shape, strict=True):
        if letter in wanted:
            first, letter = letter, next(free)
            factors.append(f.eye(length, dtype=g.dtype, device=g.device, scheduler=runtime_of(g._value)))
            terms.append(first + letter)
        wanted += letter
    known = "".join([letter for letter in wanted if letter in "".join(terms)])
    found = _product_of(factors, terms, known)
    if known != wanted:
        found = f.expand_dims(found, axis=tuple([i for i, letter in enumerate(wanted) if letter not in known]))
    # Axes to which this operand was broadcast are summed later. Along axes to which others were broadcast, it is
    # constant.
    whole = [a if b == 1 else b for a, b in zip(known_shape(found, "einsum"), call.metas[place].shape, strict=True)]
    return found if found.shape == tuple(whole) else f.broadcast_to(found, whole)


def _product_of(factors: list[Any], terms: list[str], known: str) -> Tensor:
    """The `einsum` of these terms. Over a long axis it is taken in pieces, whose results are added up accurately."""
    factors = [wide(x) if isinstance(x, Tensor) else x for x in factors]
    pairs = [(x, term) for x, term in zip(factors, terms, strict=True) if term]
    lengths: dict[str, set[int]] = {}
    for x, term in pairs:
        for letter, length in zip(term, known_shape(x, "einsum"), strict=True):
            lengths.setdefault(letter, set()).add(length)
    width = prod([max(lengths[letter]) for letter in known])
    long = [a for a, n in lengths.items() if a not in known and len(n) == 1 and min(n) >= max(MANY, width)]
    once = [a for a in long if all(term.count(a) < 2 for term in terms)]
    if not once:
        return op("einsum", *factors, subscripts=f"{','.join(terms)}->{known}")
    letter = once[0]
    piece, (length,) = rows_per_piece(width), lengths[letter]
    whole, new = length // piece * piece, next(free for free in ascii_letters if free not in lengths)

    def part(x: Any, term: str, start: int, stop: int, *shape: int) -> Any:
        if letter not in term:
            return x
        at = term.index(letter)
        some = x[along(at, x.ndim, slice(start, stop))]
        return some.reshape(*some.shape[:at], *shape, *some.shape[at + 1 :]) if shape else some

    split = [term.replace(letter, new + letter) for term in terms]
    pieces = [part(x, term, 0, whole, whole // piece, piece) for x, term in zip(factors, terms, strict=True)]
    found = summed(op("einsum", *pieces, subscripts=f"{','.join(split)}->{new}{known}"), (0,))
    if whole == length:
        return found
    rest = [part(x, term, whole, length) for x, term in zip(factors, terms, strict=True)]
    return found + op("einsum", *rest, subscripts=f"{','.join(terms)}->{known}")


def _letters(call: Any) -> tuple[list[str], str]:
    """A letter for each axis of each operand, and of the result; also for the axes of an ellipsis."""
    terms, output = einsum_letters(call.options["subscripts"], [len(getattr(m, "shape", ())) for m in call.metas])
    free = (letter for letter in reversed(ascii_letters) if letter not in "".join(terms))
    names = {digit: next(free) for digit in sorted(set("".join(terms))) if digit.isdigit()}
    table = str.maketrans(names)
    return [term.translate(table) for term in terms], output.translate(table)


# -- statistics --------------------------------------------------------------------------------------------------------


def _not_nan(x: Tensor) -> Tensor:
    return f.logical_not(f.isnan(x))


def _filled(x: Tensor, fill: float) -> Tensor:
    return f.where(f.isnan(x), fill, x)


def _nanmean(g: Tensor, x: Tensor, call: Any) -> Tensor:
    """NaN elements get 0; or NaN, if there are no others."""
    there = _not_nan(x)
    return shared(g, there, call) * there


def _number_deviations(x: Tensor, call: Any) -> Tensor:
    """From the mean of the numbers; 0 for NaN elements."""
    x = wide(x)
    return f.where(f.isnan(x), 0, x - f.nanmean(x, reduced_of(call), keepdims=True))


def _free(x: Tensor, call: Any) -> Tensor:
    """The number by which the sum of squared deviations is divided; NaN if none is free."""
    count = f.sum(_not_nan(x), axis=reduced_of(call), dtype=wide(x).dtype, keepdims=call.options.get("keepdims", False))
    free = count - call.options.get("correction", 0)
    return f.where(free <= 0, nan, free)


def _number_extreme(g: Tensor, x: Tensor, out: Tensor, call: Any) -> Tensor:
    """In equal shares to the extreme elements. NaN elements get 0, even if there are no others."""
    mask = x == spread(out, call)
    return f.where(mask, shared(g, mask, call), 0)


def _quantile(g: Tensor, x: Tensor, call: Any) -> Tensor:
    """To the two elements around each result, by their weights; for a line with NaN, to the last NaN."""
    parts = parts_of(*[call.options[name] for name in ("q", "form", "percent")])
    return _to_places(g, x, call, parts, call.options["method"])


def _to_places(g: Tensor, x: Tensor, call: Any, parts: list[float], method: str) -> Tensor:
    axes, shape = reduced_of(call), call.metas[0].shape
    kept = tuple([i for i in range(len(shape)) if i not in axes])
    lead, n = [shape[i] for i in kept], prod([shape[i] for i in axes])
    lines = f.permute_dims(x, kept + axes).reshape(*lead, n)
    if not n or not parts:
        return f.zeros_like(x)
    order = f.argsort(lines.detach())
    places = [place_of(n, part, method) for part in parts]
    nearer, found_at = [near for _, _, near in places], [[at for at, _, _ in places], [at for _, at, _ in places]]
    weights = listed(np.array([[1 - near for near in nearer], nearer], g.dtype).ravel(), g)
    chosen = f.take(order, listed(np.array(found_at, np.intp).ravel(), g), axis=-1)
    chosen = f.where(f.isnan(f.max(lines.detach(), axis=-1, keepdims=True)), order[..., -1:], chosen)
    each = f.moveaxis(g.reshape(len(parts), *lead), 0, -1)
    each = f.concat([each, each], axis=-1) * weights
    found = op("scatter_along_axis", each, chosen, shape=(*lead, n), axis=-1)
    return reordered(found.reshape(*[shape[i] for i in kept + axes]), kept + axes)


def _weights(g: Tensor, operands: tuple[Any, ...], call: Any) -> Tensor:
    return g * operands[1 - call.place] if len(operands) > 1 else g


RUNNING: Rules = {"cumulative_prod": (_cumulative_prod_composed,)}
ALONG_AXES: Rules = {
    "sum": (full,),
    "accurate_sum": (full,),
    "mean": (lambda g, call: full(narrow(per_element(g, call), g), call),),
    "max": (_extreme,),
    "min": (_extreme,),
    "prod": (prod_gradient,),
    "var": (lambda g, x, call: _deviations(x, call) * spread(per_element(g, call) * 2, call),),
    "std": (lambda g, x, out, call: _root("std", per_element(g, call), x, out, _deviations(x, call), call),),
    "cumulative_sum": (_cumulative_sum,),
    "cumulative_prod": (_cumulative_prod,),
    "diff": (_diff,),
    "sort": (_sort,),
    # Products that sum over axes.
    "linear_weight_grad": (lambda g, y: y @ g.mT, lambda g, x: x @ g),  # of x^T y, see `over_rows`
    "matmul": (_matmul_first, _matmul_second),
    "vecdot": (lambda g, y, call: _vecdot(g, y, call), lambda g, x, call: _vecdot(g, x, call)),
    "tensordot": (lambda g, y, call: _tensordot(g, y, call), lambda g, x, call: _tensordot(g, x, call)),
    "dot": (lambda g, y, call: _dot(g, y, call), lambda g, x, call: _dot(g, x, call)),
    "einsum": (_einsum,),
    # Statistics.
    "nansum": (lambda g, x, call: full(g, call) * _not_nan(x),),
    "nanprod": (lambda g, x, call: prod_gradient(g, _filled(x, 1), call) * _not_nan(x),),
    "nanmax": (_number_extreme,),
    "nanmin": (_number_extreme,),
    "nanmean": (_nanmean,),
    "nanvar": (lambda g, x, call: _number_deviations(x, call) * spread(wide(g) * 2 / _free(x, call), call),),
    "nanstd": (
        lambda g, x, out, call: _root("nanstd", wide(g) / _free(x, call), x, out, _number_deviations(x, call), call),
    ),
    "median": (lambda g, x, call: _to_places(g, x, call, [0.5], "linear"),),
    "quantile": (_quantile,),
    "observation_weights": (_weights,),
}
