"""Functions of the gradients of a whole model."""

from __future__ import annotations

from collections.abc import Iterable

from .. import _instead
from ..autograd import no_grad
from ..autograd.rules.common import narrow, wide
from ..runtime.transaction import transaction
from ..tensors.functions import linalg, minimum, stack
from ..tensors.handles import runtime_of
from ..tensors.tensor import Tensor
from .functional.common import constant

__all__ = ["clip_grad_norm_"]


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Scale all gradients so that their norm, as if they were one vector, is at most `max_norm`.

    Issues its tasks, all or none, and returns at once, with the norm before scaling: await it only if you want to see
    it. If a gradient failed, the norm and all gradients fail, and `optimizer.step()` is skipped.

    Args:
        parameters: those without a gradient are left out.
        max_norm: of all gradients together.
        norm_type: the p of the p-norm; `inf` for the largest magnitude.
        error_if_nonfinite: must be False, since an error here would have to wait for the norm.

    Raises:
        ValueError: for `error_if_nonfinite`, for no parameters, and for numbers that make no sense.
        QueueFull: if the backlog has no room for all tasks; nothing has changed then.
        CaptureError: while a step is captured.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         w = await s.put(np.array([0.0, 0.0]))
    ...         w.requires_grad = True
    ...         (w * await s.put(np.array([3.0, 4.0]))).sum().backward()
    ...         norm = asc.nn.clip_grad_norm_([w], 1.0)
    ...         print(await norm.item(), (await w.grad).round(3))
    >>> asc.run(main)
    5.0 [0.6 0.8]
    """
    if error_if_nonfinite:
        raise ValueError(
            "clip_grad_norm_: the norm is known only when it is awaited: leave error_if_nonfinite out,"
            " and check `math.isfinite(await norm.item())` before `optimizer.step()`"
        )
    if not float(max_norm) >= 0:
        raise ValueError(f"clip_grad_norm_: max_norm={max_norm} must not be negative")
    tensors = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    if not tensors:
        raise ValueError("clip_grad_norm_: there are no parameters")
    graded = [tensor for tensor in {id(tensor): tensor for tensor in tensors}.values() if tensor.grad is not None]
    if not graded:
        return constant(tensors[0], (), 0)
    runtime = runtime_of(graded[0]._value)
    with no_grad(), transaction(runtime, "clip_grad_norm_()"):
        gradients = [tensor.grad for tensor in graded if tensor.grad is not None]
        norms = [linalg.vector_norm(wide(gradient), ord=norm_type).to(gradients[0].device) for gradient in gradients]
        norm = linalg.vector_norm(stack(norms), ord=norm_type)
        factor = minimum(max_norm / (norm + 1e-6), 1.0)
        # Half precision may hold the product even if it does not hold the factor.
        scaled = [narrow(wide(g) * factor.to(g.device), g) for g in gradients]
    for tensor in graded:
        tensor.grad = scaled.pop(0)
    del gradients
    runtime.dispatch()
    return norm


_instead.explain_missing(globals(), "asyncsched.nn.utils", _instead.UTILS)
