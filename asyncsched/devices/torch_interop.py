"""PyTorch inside a task: its modules take and give arrays, its work goes to the task's stream.

Nothing here imports PyTorch: a program that uses it did.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from .._tree import map_leaves


def call(function: Callable[..., Any], args: Sequence[Any], stream: Any = None, device: int = 0) -> Any:
    """Call a task's function.

    If it is a PyTorch module, the arrays among its arguments become tensors that share their memory, and the tensors
    in its result become arrays that do not; gradients are not kept. On a CUDA stream PyTorch's own work goes to that
    stream.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return function(*args)
    with _on(torch, stream, device):
        if not isinstance(function, torch.nn.Module):
            return function(*args)
        given: list[Any] = []
        with torch.no_grad():
            result = function(*map_leaves(partial(_tensor, torch, given), list(args)))
        if any(tensor._version for tensor in given):
            raise ValueError(
                "the module changed its input in place, which others may read: give it inplace=False, or let it change"
                " a clone"
            )
        shared = {tensor.untyped_storage().data_ptr() for tensor in given}
        return map_leaves(partial(_array, torch, shared), result)


def _on(torch: Any, stream: Any, device: int) -> Any:
    if stream is None or not torch.cuda.is_available():
        return nullcontext()
    return torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr, device=device))


def _tensor(torch: Any, given: list[Any], arg: Any) -> Any:
    """An array as a tensor, which is added to `given`; anything else as it is."""
    if not hasattr(arg, "__dlpack__") or isinstance(arg, torch.Tensor):
        return arg
    if min(getattr(arg, "strides", ()), default=0) < 0:  # which ends the process in PyTorch
        arg = arg.copy()
    given.append(torch.from_dlpack(arg))
    return given[-1]


def _array(torch: Any, given: set[int], result: Any) -> Any:
    """A tensor as an array, a copy if it is in the memory of what was given, which is read-only; others as they are."""
    if not isinstance(result, torch.Tensor):
        return result
    result = result.detach().resolve_conj().resolve_neg()
    if result.layout is torch.strided and result.untyped_storage().data_ptr() in given:
        result = result.clone()
    if result.is_cuda:
        import cupy

        return cupy.from_dlpack(result)
    try:
        return np.from_dlpack(result.contiguous())
    except (RuntimeError, BufferError) as error:
        raise TypeError(
            f"a result with dtype {result.dtype} and layout {result.layout} on device {result.device} cannot become an"
            f" array ({error}): let the module return another"
        ) from error
