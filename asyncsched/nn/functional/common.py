"""Helpers of the functions: sizes, the reduction of a loss, and constants beside an operand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ...tensors.arguments import kind_of, scalar
from ...tensors.functions import full
from ...tensors.functions._common import lengths
from ...tensors.handles import runtime_of
from ...tensors.tensor import Tensor

Reduction = Literal["mean", "sum", "none"]
Size = int | Sequence[int]
Padding = Literal["same", "valid"]


def pair(size: Size) -> tuple[int, int]:
    """One number for rows and one for columns."""
    sizes = _sizes(size)
    rows, columns = sizes if isinstance(size, Sequence) else sizes * 2
    return rows, columns


def single(size: Size) -> tuple[int]:
    """One number, also if given as a sequence of one."""
    (length,) = _sizes(size)
    return (length,)


def _sizes(size: Size) -> tuple[int, ...]:
    if isinstance(size, str):  # PyTorch's padding="same" and "valid", where there is none of it
        raise TypeError(f"{size!r} is no size: give numbers; `padding=kernel_size // 2` keeps the size at stride 1")
    return lengths(size)


def check_padding(padding: str) -> str:
    """A padding that is given by name. Raises ValueError for another name."""
    if padding not in ("same", "valid"):
        raise ValueError(f"padding={padding!r} must be a size, 'same' or 'valid'")
    return padding


def constant(x: Tensor, shape: tuple[int, ...], value: float) -> Tensor:
    """A constant tensor, with the dtype and the device of `x`."""
    return full(shape, value, dtype=x.dtype, device=x.device, scheduler=runtime_of(x._value))


def check_tensors(name: str, *operands: object) -> None:
    """Refuse lists, arrays, numbers and None, with the cure."""
    for operand in operands:
        if not isinstance(operand, Tensor):
            scalar(operand)  # raises for all but numbers
            raise TypeError(f"{name} takes tensors, not {kind_of(operand)}: `x = await s.put(a)` makes one")


def same_dtype(name: str, x: Tensor, *others: Tensor | None) -> None:
    """Refuse operands that NumPy would promote: parameters and data are of one floating-point dtype."""
    tensors = [tensor for tensor in (x, *others) if tensor is not None]
    check_tensors(name, *tensors)
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1 or x.dtype.kind != "f":
        names = ", ".join(sorted(map(str, dtypes)))
        raise TypeError(f"{name}: the operands are of {names}: bring them to one floating-point dtype with `astype`")


def reduced(name: str, losses: Tensor, reduction: Reduction) -> Tensor:
    """Each loss, or their sum or mean, as `reduction` says."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{name}: reduction={reduction!r} must be 'mean', 'sum' or 'none'")
    return losses if reduction == "none" else losses.sum() if reduction == "sum" else losses.mean()
