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
    in its result become arrays; gradients are not kept. On a CUDA stream PyTorch's own work goes to that stream.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return function(*args)
    with _on(torch, stream, device):
        if not isinstance(function, torch.nn.Module):
            return function(*args)
        with torch.no_grad():
            result = function(*[_tensors(torch, arg) for arg in args])
        return _arrays(torch, result)


def _on(torch: Any, stream: Any, device: int) -> Any:
    if stream is None or not torch.cuda.is_available():
        return nullcontext()
    return torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr, device=device))


def _tensors(torch: Any, arg: Any) -> Any:
    if hasattr(arg, "__dlpack__"):
        return arg if isinstance(arg, torch.Tensor) else torch.from_dlpack(arg)
    return rebuild(arg, lambda member: _tensors(torch, member))


def _arrays(torch: Any, result: Any) -> Any:
    if not isinstance(result, torch.Tensor):
        return rebuild(result, lambda member: _arrays(torch, member))
    if not result.is_cuda:
        return np.from_dlpack(result.detach().contiguous())
    import cupy

    return cupy.from_dlpack(result.detach())
