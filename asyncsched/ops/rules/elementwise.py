"""Rules of operations that work element by element."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..meta import Meta, meta
from ..op import Inferred, Op, Operand, Options, resolve
from .common import all_contiguous, as_meta, broadcast, cast_bytes, int_bounds, lengths, same_as, sample, view_rule


def ufunc(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A universal function: NumPy's own choice of loop, the broadcast shape, K-order."""
    resolved = _resolve_dtypes(op, operands)
    result = meta(broadcast(operands), resolved[-1], all_contiguous(operands))
    number = resolved[1] if len(operands) == 2 and type(operands[1]) in (int, float) else None
    return Inferred(result, int_bounds=int_bounds(operands, resolved), number=number)


def comparison(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A comparison: as any ufunc, but every Python integer is welcome, however large."""
    return ufunc(op, operands, options)._replace(int_bounds=None)


def by_sample(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Element by element, with no ufunc to ask: the dtype is that of a sample's result."""
    dtype = resolve(op, np)(*[sample(operand) for operand in operands], **options).dtype
    return Inferred(meta(broadcast(operands), dtype, all_contiguous(operands)))


def clip(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`clip` with both limits."""
    found = by_sample(op, operands, options)
    return found._replace(int_bounds=int_bounds(operands, (found.meta.dtype,) * len(operands)))


def astype(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Another dtype, or a copy in the same one."""
    array = as_meta(operands[0])
    return Inferred(meta(array.shape, np.dtype(options["dtype"]), array.contiguous))


def copy(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The operand's own shape and dtype."""
    return same_as(operands[0])


def imag(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The imaginary part: a view of complex arrays, new zeros for others."""
    array = as_meta(operands[0])
    if array.dtype.kind == "c":
        return view_rule(op, operands, options)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"imag: dtype {array.dtype} is not numeric")
    return Inferred(meta(array.shape, array.dtype, array.contiguous), owned=array.nbytes)


def tril(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A triangle: `where` under a mask of the last two dimensions."""
    array = as_meta(operands[0])
    if not array.shape:
        raise TypeError(f"{op.name}: the operand needs at least one dimension")
    shape = lengths(array)
    mask = meta((shape * 2)[-2:], np.dtype(bool))
    return Inferred(meta(broadcast((mask, array)), array.dtype, array.contiguous), mask.nbytes)


def where(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Elements of the second or third operand; weak scalars are cast without a check, as NumPy does."""
    found = by_sample(op, operands, options)
    condition = as_meta(operands[0])
    return found._replace(workspace=cast_bytes(condition, np.dtype(bool)))


def _resolve_dtypes(op: Op, operands: tuple[Operand, ...]) -> tuple[np.dtype[Any], ...]:
    function = getattr(np, op.kernel)  # type: ignore[arg-type]  # operations of this rule name their ufunc
    return function.resolve_dtypes((*[_promoted_as(operand) for operand in operands], None))  # type: ignore[no-any-return]


def _promoted_as(operand: Operand) -> Any:
    if isinstance(operand, (Meta, np.generic)):
        return operand.dtype
    return np.dtype(bool) if type(operand) is bool else type(operand)
