"""Shared parts of the functions: the types of their arguments, and how arguments become options of an operation."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from operator import index
from typing import Any, TypeAlias

from numpy.typing import DTypeLike

from ...ops.declare import UNPACK
from ...ops.op import plan
from ...ops.table import TABLE
from ..awaitables import gather
from ..tensor import Scalar, Tensor, apply, as_now, record

Operand: TypeAlias = Tensor | Scalar
Axis: TypeAlias = int | Sequence[int] | None
Dtype: TypeAlias = DTypeLike | None
ShapeLike: TypeAlias = int | Sequence[int]


def await_all(results: Iterable[Tensor]) -> Generator[Any, None, Any]:
    """The `__await__` of a named tuple of tensors: gives the same tuple of their arrays."""
    kind: Any = type(results)
    waiting = gather(*results).__await__()
    del results  # an exception holds this frame
    return kind(*(yield from waiting))


def op(name: str, *operands: Any, scheduler: Any = None, device: object = None, **options: Any) -> Tensor:
    """Issue an operation of the table. See `apply`."""
    return apply(TABLE[name], operands, options, scheduler=scheduler, device=device)


def several(
    name: str, *operands: Any, known: bool = True, scheduler: Any = None, device: object = None, **options: Any
) -> list[Tensor]:
    """Apply an operation with several results: one task, of whose value they are views. Each is recorded.

    Args:
        known: whether all shapes must be known, since they determine those of the results.
    """
    operation, operands = TABLE[name], tuple(map(as_now, operands))
    for operand in operands:
        if known and isinstance(operand, Tensor):
            known_shape(operand, name)
    packed = apply(operation, operands, options, scheduler=scheduler, device=device)
    forms = tuple([o._value.meta if isinstance(o, Tensor) else o for o in operands])
    found = [apply(UNPACK, (packed,), place) for place in plan(operation, forms, options).parts]
    all_of_it = (*operands, *[result.detach() for result in found])
    for part, result in enumerate(found):
        record(operation, all_of_it, {**options, "part": part}, result)
    return found


def refuse_tracked(name: str, operands: Sequence[Any]) -> None:
    """Raise for operands whose gradient would be lost: autograd cannot follow packed results."""
    if any(isinstance(o, Tensor) and o._node is not None and o._node.leads_back for o in operands):
        raise NotImplementedError(
            f"{name}: no derivative is known: use `t.detach()` or `with no_grad():` to leave it out"
        )


def lengths(shape: ShapeLike) -> tuple[int, ...]:
    """A shape as a tuple; one length may be given as an int."""
    return tuple([index(length) for length in shape]) if isinstance(shape, Sequence) else (index(shape),)


def known_shape(x: Tensor, what: str) -> tuple[int, ...]:
    """The tensor's shape, for functions that need it at once."""
    shape = tuple([length for length in x.shape if length is not None])
    if len(shape) < len(x.shape):
        raise ValueError(f"{what}: the shape {x.shape} is not known until the tensor is awaited; `await` it first")
    return shape
