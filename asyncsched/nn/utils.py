"""Functions of the gradients of a whole model."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy

from .. import _instead
from ..autograd import no_grad
from ..autograd.rules.common import narrow, wide
from ..autograd.transaction import transaction
from ..tensors.functions import clip, linalg, minimum, stack
from ..tensors.handles import runtime_of
from ..tensors.tensor import Tensor
from .functional.layers import constant
from .module import Module

__all__ = ["ExponentialAverage", "clip_grad_norm_", "clip_grad_value_"]


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
    graded = _graded("clip_grad_norm_", tensors)
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


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Bring each number of each gradient into the range from `-clip_value` to `clip_value`.

    Issues its tasks, all or none, and returns at once. A gradient that failed stays failed.

    Args:
        parameters: those without a gradient are left out.
        clip_value: the largest magnitude.

    Raises:
        ValueError: for a negative `clip_value`, and for no parameters.
        QueueFull: if the backlog has no room for all tasks; nothing has changed then.
        CaptureError: while a step is captured.

    >>> w = await s.put(np.array([0.0, 0.0]))
    >>> w.requires_grad = True
    >>> (w * await s.put(np.array([3.0, -0.5]))).sum().backward()
    >>> nn.clip_grad_value_([w], 1.0)
    >>> await w.grad
    array([ 1. , -0.5])
    """
    if not float(clip_value) >= 0:
        raise ValueError(f"clip_grad_value_: clip_value={clip_value} must not be negative")
    graded = _graded("clip_grad_value_", [parameters] if isinstance(parameters, Tensor) else list(parameters))
    if not graded:
        return
    runtime = runtime_of(graded[0]._value)
    with no_grad(), transaction(runtime, "clip_grad_value_()"):
        clipped = [clip(tensor.grad, -clip_value, clip_value) for tensor in graded if tensor.grad is not None]
    for tensor in graded:
        tensor.grad = clipped.pop(0)
    runtime.dispatch()


def _graded(name: str, tensors: list[Tensor]) -> list[Tensor]:
    """Those with a gradient, each once."""
    if not tensors:
        raise ValueError(f"{name}: there are no parameters")
    return [tensor for tensor in {id(tensor): tensor for tensor in tensors}.values() if tensor.grad is not None]


class ExponentialAverage:
    """A module whose parameters follow those of another: each `update()` keeps `decay` of them, and takes the rest of
    the other's. B. T. Polyak and A. B. Juditsky (1992) average so; what it predicts is often better.

    `update()` issues tasks and returns at once, as `optimizer.step()` does. A step that was skipped leaves the
    parameters as they were, so it does no harm. Buffers, such as the running statistics of a `BatchNorm2d`, are taken
    as they are. `average.module.state_dict()` is the state to save; to go on from there, load it into `average.module`.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         layer = asc.nn.Linear(1, 1, bias=False)
    ...         average = asc.nn.ExponentialAverage(layer, decay=0.9)
    ...         layer.load_state_dict({"weight": layer.weight.detach() + 1})
    ...         average.update()
    ...         print((await (layer.weight - average.module.weight).item()).__round__(3))
    >>> asc.run(main)
    0.9

    Args:
        module: it is copied, and the copy is in `eval()`.
        decay: from 0, which copies, to below 1.

    Attributes:
        module: the copy.

    Raises:
        ValueError: for another decay.
    """

    def __init__(self, module: Module, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay} must be from 0 to below 1")
        self.decay = decay
        self._followed = module
        self.module: Module = deepcopy(module).eval()

    def update(self) -> None:
        """Follow the other module by one step.

        Raises:
            QueueFull: if the backlog has no room for all tasks; nothing has changed then.
            CaptureError: while a step is captured.
        """
        state, followed = self.module.state_dict(), self._followed.state_dict()
        averaged = [name for name, _ in self.module.named_parameters() if name in followed]
        if averaged:
            runtime = runtime_of(state[averaged[0]]._value)
            with no_grad(), transaction(runtime, "update()"):
                moved = {
                    name: narrow(wide(state[name]) * self.decay + wide(followed[name]) * (1 - self.decay), state[name])
                    for name in averaged
                }
            runtime.dispatch()
            followed = {**followed, **moved}
        self.module.load_state_dict(followed)


_instead.explain_missing(globals(), "asyncsched.nn.utils", _instead.UTILS)
