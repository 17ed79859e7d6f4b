"""Products that sum over axes: NumPy's own functions, of which CuPy has fewer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from .. import cut, halves
from ..cost_model import has_blas
from ..declare import PRODUCT_BOUND, Cost, Meta, bounded, meta, operation, product, with_out, with_products
from ..op import Blas, Cut, Inferred, Kernel, Op, Operand, Options, Shared, resolve
from ..parallel import here
from ..rules import Known, all_contiguous, as_meta, broadcast_shapes, cast_bytes, lengths, proxy, sample
from . import releasing_gil


def vecdot(xp: Any, x: Any, y: Any, *, axis: int = -1, out: Any = None) -> Any:
    """The product of vectors along an axis. CuPy has no `vecdot`, so there it is a product of matrices."""
    if xp is np:
        return releasing_gil.vecdot(xp, x, y, axis=axis, out=out)
    x, y = xp.moveaxis(x, axis, -1).conj(), xp.moveaxis(y, axis, -1)
    return halves.matmul(xp.matmul, x[..., None, :], y[..., None])[..., 0, 0]


def dot(xp: Any, x: Any, y: Any) -> Any:
    """NumPy's `dot`. A product of two matrices is cut for several threads, as in `matmul`."""
    if xp is not np:
        return halves.product(xp.dot, x, y, prod(np.shape(x)[-1:]))
    if here.threads < 2 or not np.ndim(x) == np.ndim(y) == 2:
        return np.dot(x, y)
    dtype = np.result_type(x, y)
    if not has_blas(dtype):
        return np.dot(x, y)
    # converted and laid out once, not by each part
    x, y = [array.astype(dtype, order="K", copy=not array.flags.forc) for array in (x, y)]
    return cut.run(_MATMUL, resolve(_MATMUL, np), (x, y), np.empty((len(x), y.shape[1]), dtype), {})


def tensordot(xp: Any, x: Any, y: Any, *, axes: Any) -> Any:
    """Lay out both operands as matrices, as NumPy does, and multiply them."""
    if xp is np and here.threads < 2:
        return np.tensordot(x, y, axes)
    first, second = tensordot_axes(axes, x.ndim, y.ndim)
    if xp is not np:
        return halves.product(partial(xp.tensordot, axes=axes), x, y, prod([x.shape[axis] for axis in first]))
    kept_first = [axis for axis in range(x.ndim) if axis not in first]
    kept_second = [axis for axis in range(y.ndim) if axis not in second]
    x, y = x.transpose([*kept_first, *first]), y.transpose([*second, *kept_second])
    shape = (*x.shape[: len(kept_first)], *y.shape[len(second) :])
    inner = prod(y.shape[: len(second)])
    rows, columns = prod(x.shape[: len(kept_first)]), prod(y.shape[len(second) :])
    return dot(np, x.reshape(rows, inner), y.reshape(inner, columns)).reshape(shape)


def einsum(xp: Any, *arrays: Any, subscripts: str) -> Any:
    """Products summed over axes. A result that would be a view of an operand is copied."""
    function = partial(xp.einsum, subscripts)
    found = function(*arrays) if xp is np else halves.in_single(function, *arrays)
    return found.copy(order="K") if len(arrays) == 1 else found


def outer(xp: Any, x: Any, y: Any, *, out: Any = None) -> Any:
    """All products of the elements of two vectors."""
    return xp.multiply(x[:, None], y[None, :], out=out)


# -- rules -------------------------------------------------------------------------------------------------------------


def matmul_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`matmul`: an operand of one dimension gains one for the product and loses it afterwards."""
    first, second = lengths(operands[0]), lengths(operands[1])
    if not first or not second:
        raise ValueError("matmul: an operand does not have enough dimensions (at least 1 is needed)")
    rows, columns = first[-2:-1], second[-1:] if len(second) > 1 else ()
    inner = second[-2] if len(second) > 1 else second[0]
    if first[-1] != inner:
        raise ValueError(f"matmul: shapes {first} and {second} do not match: {first[-1]} is not {inner}")
    shape = (*broadcast_shapes(f"{op.name}: outer dimensions", first[:-2], second[:-2]), *rows, *columns)
    dtypes = _loop_dtypes(np.matmul, operands)
    # without loop dimensions the result is always in C order
    contiguous = all_contiguous(operands) or max(len(first), len(second)) <= 2
    # NumPy lays out a matrix for BLAS, one after the other; of a single pair, `cut` does once for all parts.
    laid = sum(prod(one.bound[-2:]) * dtypes[-1].itemsize for one in map(as_meta, operands)
               if len(one.bound) > 1 and not one.contiguous) if has_blas(dtypes[-1]) else 0  # fmt: skip
    shared = Shared(laid, prod(shape[: max(len(first), len(second)) - 2]))
    found = meta(shape, dtypes[-1], contiguous)
    return Inferred(found, _casts(operands, dtypes), work=prod(shape) * inner, shared=shared)


def vecdot_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`vecdot`: the sum of products along one axis, the first operand conjugated."""
    shapes, axis = [lengths(operand) for operand in operands], options.get("axis", -1)
    if not all(shapes):
        raise ValueError("vecdot: an operand does not have enough dimensions (at least 1 is needed)")
    axes = [normalize_axis_index(axis, len(shape)) for shape in shapes]
    summed = [shape[axis] for shape, axis in zip(shapes, axes, strict=True)]
    if summed[0] != summed[1]:
        raise ValueError(f"vecdot: shapes {shapes[0]} and {shapes[1]} do not match: {summed[0]} is not {summed[1]}")
    first, second = [shape[:axis] + shape[axis + 1 :] for shape, axis in zip(shapes, axes, strict=True)]
    dtypes = _loop_dtypes(np.vecdot, operands)
    result = meta(broadcast_shapes(f"{op.name}: outer dimensions", first, second), dtypes[-1], all_contiguous(operands))
    return Inferred(result, _casts(operands, dtypes), work=prod(result.bound) * summed[0])


def tensordot_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`tensordot`: both operands are laid out as matrices (copied if necessary), then multiplied."""
    first, second = lengths(operands[0]), lengths(operands[1])
    summed_first, summed_second = tensordot_axes(options.get("axes", 2), len(first), len(second))
    if [first[axis] for axis in summed_first] != [second[axis] for axis in summed_second]:
        over = f"axes {summed_first} and {summed_second}"
        raise ValueError(f"tensordot: shape-mismatch for sum: {first} and {second} over {over}")
    kept = [length for axis, length in enumerate(first) if axis not in summed_first]
    kept += [length for axis, length in enumerate(second) if axis not in summed_second]
    metas = [as_meta(operand) for operand in operands]
    dtype = np.result_type(metas[0].dtype, metas[1].dtype)
    laid = _laid_out(metas[0], summed_first, False) + _laid_out(metas[1], summed_second, True)
    workspace = laid + sum(cast_bytes(array, dtype) for array in metas)
    work = prod(kept) * prod(first[axis] for axis in summed_first)
    return Inferred(meta(tuple(kept), dtype), workspace, work=work)


def _laid_out(array: Meta, summed: Known, first: bool) -> int:
    """Bytes of the copy of an operand as a matrix, with the axes that are summed over `first` or last; 0 for a view."""
    kept = [axis for axis in range(len(array.bound)) if axis not in summed]
    turned = proxy(array).transpose([*summed, *kept] if first else [*kept, *summed])
    inner = prod([array.bound[axis] for axis in summed])
    rest = prod([array.bound[axis] for axis in kept])
    try:
        turned.reshape((inner, rest) if first else (rest, inner), copy=False)
    except ValueError:
        return array.nbytes
    return 0 if array.contiguous else array.nbytes


def dot_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`dot`: over the last axis of the first and the one before the last of the second; with a number, a product."""
    first, second = lengths(operands[0]), lengths(operands[1])
    metas = [as_meta(operand) for operand in operands]
    dtype = np.result_type(metas[0].dtype, metas[1].dtype)
    laid = [0 if array.contiguous or not has_blas(dtype) else array.nbytes for array in metas]
    workspace = sum(cast_bytes(array, dtype) or nbytes for array, nbytes in zip(metas, laid, strict=True))
    if not first or not second:
        return Inferred(meta(first or second, dtype, all_contiguous(operands)), workspace, work=prod(first or second))
    inner = second[-2:][0]
    if first[-1] != inner:
        raise ValueError(f"dot: shapes {first} and {second} do not match: {first[-1]} is not {inner}")
    shape = (*first[:-1], *second[:-2], *(second[-1:] if len(second) > 1 else ()))
    return Inferred(meta(shape, dtype), workspace, work=prod(shape) * inner)


def einsum_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`einsum`: each letter is an axis; an ellipsis stands for leading axes that broadcast."""
    inputs, output = einsum_letters(options["subscripts"], [len(lengths(operand)) for operand in operands])
    sizes: dict[str, int] = {}
    for letters, operand in zip(inputs, operands, strict=True):
        for letter, length in zip(letters, lengths(operand), strict=True):
            known = sizes.setdefault(letter, length)
            if known == 1 or known == length:
                sizes[letter] = length
            elif length != 1:
                raise ValueError(f"einsum: {letter!r} has length {known} and {length} in {options['subscripts']!r}")
    dtype = np.result_type(*[as_meta(operand).dtype for operand in operands])
    inside = np.promote_types(dtype, np.float32) if dtype == np.float16 else dtype
    result = meta(tuple([sizes[letter] for letter in output]), dtype, False)
    casts = sum(cast_bytes(operand, inside) for operand in operands) + cast_bytes(result, inside)
    return Inferred(result, on_card=casts)  # NumPy casts in pieces


def einsum_letters(subscripts: str, ndims: Sequence[int]) -> tuple[list[str], str]:
    """A letter for each axis of each operand, and of the result; digits for the axes of an ellipsis."""
    text, arrow, wanted = subscripts.replace(" ", "").partition("->")
    terms = text.split(",")
    if len(terms) != len(ndims):
        raise ValueError(f"einsum: {subscripts!r} names {len(terms)} operands, and {len(ndims)} are given")
    wide = max([ndim - len(term) + 3 for term, ndim in zip(terms, ndims, strict=True) if "..." in term], default=0)
    if wide > 10:
        raise ValueError(f"einsum: {subscripts!r}: an ellipsis stands for more than ten axes")
    inputs = []
    for term, ndim in zip(terms, ndims, strict=True):
        hidden = "0123456789"[max(wide - (ndim - len(term) + 3), 0) : wide] if "..." in term else ""
        letters = term.replace("...", hidden)
        if len(letters) != ndim or not all(letter.isalpha() or letter in hidden for letter in letters):
            raise ValueError(f"einsum: {term!r} in {subscripts!r} does not name the {ndim} axes of its operand")
        inputs.append(letters)
    if arrow:
        output = wanted.replace("...", "0123456789"[:wide])
        if len(set(output)) < len(output) or not set(output) <= set("".join(inputs)):
            raise ValueError(f"einsum: {wanted!r} in {subscripts!r} must name axes of the operands, each once")
        return inputs, output
    every = "".join(inputs)
    once = sorted({letter for letter in every if every.count(letter) == 1 and letter.isalpha()})
    return inputs, "0123456789"[:wide] + "".join(once)


def _loop_dtypes(function: Any, operands: tuple[Operand, ...]) -> tuple[np.dtype[Any], ...]:
    dtypes = [as_meta(operand).dtype for operand in operands]
    return function.resolve_dtypes((*dtypes, None))  # type: ignore[no-any-return]


def _casts(operands: tuple[Operand, ...], dtypes: tuple[np.dtype[Any], ...]) -> int:
    return sum(cast_bytes(operand, dtype) for operand, dtype in zip(operands, dtypes, strict=False))


def tensordot_axes(axes: int | tuple[Any, Any], ndim_first: int, ndim_second: int) -> tuple[Known, Known]:
    """The axes of both operands that are summed over, none negative."""
    if isinstance(axes, int):
        if axes < 0 or axes > min(ndim_first, ndim_second):
            raise ValueError(f"tensordot: cannot sum over {axes} axes of arrays with {ndim_first} and {ndim_second}")
        return tuple(range(ndim_first - axes, ndim_first)), tuple(range(axes))
    first, second = normalize_axis_tuple(axes[0], ndim_first), normalize_axis_tuple(axes[1], ndim_second)
    if len(first) != len(second):
        raise ValueError("tensordot: shape-mismatch for sum: give as many axes of one operand as of the other")
    return first, second


def outer_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """All products of the elements of two vectors."""
    shapes = [lengths(operand) for operand in operands]
    if any(len(shape) != 1 for shape in shapes):
        raise ValueError(f"outer: give two tensors of one dimension, not of shapes {shapes}")
    dtype = resolve(op, np)(*[sample(operand, (1,)) for operand in operands]).dtype
    return Inferred(meta((shapes[0][0], shapes[1][0]), dtype))


# -- declarations ------------------------------------------------------------------------------------------------------


def _cut_inside(kernel: Kernel, rule: Any, doc: str) -> Op:
    """A product whose kernel lays out matrices and cuts their product; inside `exact()` it is NumPy's own."""
    own = operation(kernel, rule, doc, Cost.MULTIPLICATION, blas=Blas.PRODUCT)
    return bounded(own, own.name, *PRODUCT_BOUND)


_MATMUL = product(
    with_out(
        "matmul",
        matmul_rule,
        "The matrix product.",
        Cost.MULTIPLICATION,
        releasing_gil=releasing_gil.matmul,
        on_cupy=halves.matmul,
        launches=7,  # 1 for two matrices; for broadcast stacks CuPy first makes arrays of pointers
    ),
    Cut.PRODUCT_NN,
)
OPS = (
    _MATMUL,
    with_products(vecdot, vecdot_rule, "The product of vectors along an axis.", Cost.MULTIPLICATION),
    _cut_inside(tensordot, tensordot_rule, "The sum of products over several axes."),
    _cut_inside(dot, dot_rule, "NumPy's `dot`."),
    operation(einsum, einsum_rule, "Products summed over the axes that a text names."),
    with_out(outer, outer_rule, "All products of the elements of two vectors.", Cost.SCALAR, launches=1),
)  # fmt: skip
