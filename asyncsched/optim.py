"""Optimisers: they move parameters against their gradients.

    optimizer = SGD(parameters, lr=0.1, momentum=0.9)
    loss.backward()
    optimizer.step()                    # issues tasks and returns at once
    optimizer.zero_grad()

A parameter keeps its handle and moves to a new version, as with `x[i] = v`: tasks already issued keep the old one, and
its buffer is written over when nobody else holds it. So what failed in the loss fails in the parameters, too: where a
step may fail, `await loss` before `step()`, or save what to go back to.

The formulas are those of PyTorch's documentation of `torch.optim.SGD` and `torch.optim.AdamW`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import sqrt
from typing import Any

from .autograd import no_grad
from .tensors.functions._common import op
from .tensors.handles import runtime_of
from .tensors.tensor import Tensor

State = dict[str, Any]


class Optimizer:
    """What all optimisers do. One of them says what a step is, in `_moved`.

    Attributes:
        parameters: what it moves.
        lr: the learning rate, which may be set at any time.
        state: for each parameter what is kept from step to step: tensors, and how many steps there were.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float, **more: float) -> None:
        """`more` are other numbers of the formula, which must not be negative either."""
        for name, number in {"lr": lr, **more}.items():
            if number < 0:
                raise ValueError(f"{name} must not be negative, and is {number}")
        self.parameters = list(parameters)
        self.lr = lr
        self.state: list[State] = [{} for _ in self.parameters]
        if not self.parameters:
            raise ValueError("there are no parameters to move")
        for i, parameter in enumerate(self.parameters):
            if not isinstance(parameter, Tensor) or parameter._node is None or not parameter._node.leaf:
                raise TypeError(f"parameter {i} must be a tensor whose requires_grad was set to True")

    def step(self) -> None:
        """Move every parameter that has a gradient. Issues its tasks, all or none, and returns at once.

        Raises:
            RuntimeError: if there is no gradient.
            QueueFull: if the backlog has no room for all of it; nothing has changed then.
        """
        todo = [(p, p.grad, state) for p, state in zip(self.parameters, self.state, strict=True) if p.grad is not None]
        if not todo:
            raise RuntimeError("no parameter has a gradient: call `loss.backward()` before `step()`")
        runtime = runtime_of(todo[0][0]._value)
        with no_grad(), runtime.transaction("step()"):
            moved = [self._moved(p.detach(), gradient, state) for p, gradient, state in todo]
        # Nothing is launched yet: buffers that only the handles held are written over.
        for p, _, state in todo:
            new, kept = moved.pop(0)
            p._value = new._value
            state.update(kept)
        del new, kept
        runtime.dispatch()

    def zero_grad(self) -> None:
        """Set the gradient of every parameter to None."""
        for parameter in self.parameters:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """The learning rate and what is kept for each parameter, in order. The tensors in it stay what they are."""
        return {"lr": self.lr, "state": [_copied(state) for state in self.state]}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave.

        Raises:
            ValueError: if it is of other parameters.
        """
        if len(saved["state"]) != len(self.parameters):
            raise ValueError(f"this is the state of {len(saved['state'])} parameters, not of {len(self.parameters)}")
        for i, (parameter, state) in enumerate(zip(self.parameters, saved["state"], strict=True)):
            for name, kept in state.items():
                if isinstance(kept, Tensor) and (kept.shape, kept.dtype) != (parameter.shape, parameter.dtype):
                    raise ValueError(f"{name} of parameter {i} is {kept!r}, and the parameter {parameter!r}")
        self.lr = saved["lr"]
        self.state = [_copied(state) for state in saved["state"]]

    def _moved(self, parameter: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        """The parameter after a step, and what changes of its state. Changes nothing itself."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.parameters)} parameters, lr={self.lr})"


class SGD(Optimizer):
    """Stochastic gradient descent: p <- p - lr d, where d is the gradient g + weight_decay p.

    With momentum, d is b <- momentum b + (g + weight_decay p), where b begins as the first gradient; with `nesterov`
    it is g + weight_decay p + momentum b.

    Args:
        parameters: tensors with `requires_grad` set.
        lr: the learning rate.
        momentum: how much of b stays from step to step.
        weight_decay: how much of the parameter is added to its gradient.
        nesterov: look ahead by one step of momentum.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         w = await s.put(np.array(4.0))
    ...         w.requires_grad = True
    ...         optimizer = asc.optim.SGD([w], lr=0.25)
    ...         for _ in range(3):
    ...             optimizer.zero_grad()
    ...             (w * w).backward()              # the gradient is 2 w, so a step halves w
    ...             optimizer.step()
    ...         return await w.item()
    >>> asc.run(main)
    0.5
    """

    def __init__(
        self, parameters: Iterable[Tensor], lr: float = 1e-3, *, momentum: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and not momentum:
            raise ValueError("nesterov needs momentum")
        self.momentum, self.weight_decay, self.nesterov = float(momentum), float(weight_decay), nesterov

    def _moved(self, parameter: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        if self.weight_decay:
            gradient = op("axpby", gradient, parameter, 1.0, self.weight_decay)
        if not self.momentum:
            return op("axpby", parameter, gradient, 1.0, -self.lr), {}
        before = state.get("momentum")
        average = gradient if before is None else op("axpby", before, gradient, self.momentum, 1.0)
        step = op("axpby", average, gradient, self.momentum, 1.0) if self.nesterov else average
        return op("axpby", parameter, step, 1.0, -self.lr), {"momentum": average.detach()}


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101).

    At step t, from 1: m <- b1 m + (1 - b1) g and v <- b2 v + (1 - b2) g**2, which begin at zero; then
    p <- p - lr weight_decay p - lr (m / (1 - b1**t)) / (sqrt(v / (1 - b2**t)) + eps).

    Args:
        parameters: tensors with `requires_grad` set.
        lr: the learning rate.
        betas: b1 and b2, both below 1.
        eps: keeps the quotient finite.
        weight_decay: how much of the parameter goes at each step, times `lr`.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         w = await s.put(np.array(4.0))
    ...         w.requires_grad = True
    ...         optimizer = asc.optim.AdamW([w], lr=0.1, weight_decay=0.0)
    ...         (w * w).backward()
    ...         optimizer.step()
    ...         return await w.item()
    >>> print(f"{asc.run(main):.3f}")               # the first step is as long as the learning rate
    3.900
    """

    def __init__(
        self, parameters: Iterable[Tensor], lr: float = 1e-3, *, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr, eps=eps, weight_decay=weight_decay)
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be at least 0 and below 1, and are {betas}")
        self.betas, self.eps, self.weight_decay = (float(betas[0]), float(betas[1])), float(eps), weight_decay

    def _moved(self, parameter: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        (b1, b2), t = self.betas, state.get("step", 0) + 1
        if t == 1:
            mean, square = gradient * (1 - b1), (gradient * gradient) * (1 - b2)
        else:
            mean = op("axpby", state["mean"], gradient, b1, 1 - b1)
            square = op("axpby_squared", state["square"], gradient, b2, 1 - b2)
        keep, rate, scale = 1 - self.lr * self.weight_decay, self.lr / (1 - b1**t), 1 / sqrt(1 - b2**t)
        moved = op("adam_step", parameter, mean, square, keep, rate, scale, self.eps)
        return moved, {"step": t, "mean": mean, "square": square}


def _copied(state: State) -> State:
    """The same under handles of their own."""
    return {name: kept.detach() if isinstance(kept, Tensor) else kept for name, kept in state.items()}


__all__ = ["SGD", "AdamW", "Optimizer"]
