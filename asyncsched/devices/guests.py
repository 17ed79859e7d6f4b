"""PyTorch inside a task: its modules take and give arrays, its work goes to the task's stream.

Nothing here imports PyTorch: a program that uses it did.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from .nested import rebuild


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
            result = function(*[_tensors(torch, arg, given) for arg in args])
        if any(tensor._version for tensor in given):
            raise ValueError(
                "the module changed its input in place, which others may read: give it inplace=False, or let it change"
                " a clone"
            )
        return _arrays(torch, result, {tensor.untyped_storage().data_ptr() for tensor in given})


def _on(torch: Any, stream: Any, device: int) -> Any:
    if stream is None or not torch.cuda.is_available():
        return nullcontext()
    return torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr, device=device))


def _tensors(torch: Any, arg: Any, given: list[Any]) -> Any:
    """`arg` with its arrays as tensors, which are added to `given`."""
    if not hasattr(arg, "__dlpack__"):
        return rebuild(arg, lambda member: _tensors(torch, member, given))
    if isinstance(arg, torch.Tensor):
        return arg
    if min(getattr(arg, "strides", ()), default=0) < 0:  # which ends the process in PyTorch
        arg = arg.copy()
    given.append(torch.from_dlpack(arg))
    return given[-1]


def _arrays(torch: Any, result: Any, given: set[int]) -> Any:
    """A result with its tensors as arrays: copies of those in the memory of what was given, which is read-only."""
    if not isinstance(result, torch.Tensor):
        return rebuild(result, lambda member: _arrays(torch, member, given))
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
