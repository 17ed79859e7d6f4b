"""Optimisers: they move parameters against their gradients.

    optimizer = SGD(parameters, lr=0.1, momentum=0.9)
    loss.backward()
    optimizer.step()                    # issues tasks and returns at once
    optimizer.zero_grad()

A parameter keeps its handle and moves to a new version, as with `x[i] = v`: tasks already issued keep the old one, and
its buffer is written over when nobody else holds it.

A step is all or nothing. `step()` issues a *commit*, which decides once, when the last gradient is finished: if all are
there, every parameter and all that the optimiser keeps move, the count of steps included. If one failed or was
cancelled, or the step was (by its scope, a deadline, `parameter.cancel()`, or for want of bytes), it is skipped: every
new version is the old buffer. So parameters never fail, what was issued on them goes on, and the next batch trains as
if this one had never been. What failed is told once, by the next barrier or window, or by `await loss`.

Gradients are not part of it: one that failed stays so until `zero_grad()`, so of gradients added up over several
batches one bad batch skips the step. Learning rates set by a schedule move when the program sets them, whether a step
was skipped or not; `state["step"]` is the count of steps that were made. Not covered: a lost device, a machine out of
memory in the middle of a step, and what a module moves in its forward pass, such as a generator.

The formulas are those of PyTorch's documentation of `torch.optim.SGD` and `torch.optim.AdamW`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from ._arguments import check_number
from ._core.model import Value
from .autograd import no_grad
from .flow.tasks import Tasks
from .tensors.functions import full
from .tensors.functions._common import op
from .tensors.handles import runtime_of
from .tensors.tensor import Tensor

State = dict[str, Any]
T = TypeVar("T")
_COUNT = np.dtype("i8")  # of the number of steps


class Setting(Generic[T]):
    """A number of an optimiser's formula. It is checked whenever it is set, and part of the optimiser's state."""

    def __init__(self, check: Callable[[str, Any], T], doc: str) -> None:
        self.check, self.__doc__ = check, doc

    def __set_name__(self, owner: type[Optimizer], name: str) -> None:
        self._name = name

    def __get__(self, optimizer: Optimizer, kind: type[Optimizer]) -> T:
        if optimizer is None:  # asked of the class, as `help` does
            return self
        found: T = optimizer._settings[self._name]
        return found

    def __set__(self, optimizer: Optimizer, value: T) -> None:
        optimizer._settings = optimizer._checked({**optimizer._settings, self._name: value})


def _number(name: str, value: Any) -> float:
    check_number(name, value, zero=True)
    return float(value)


def _truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return value


def _betas(name: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"{name} must be two numbers, not {value!r}")
    first, second = [_number(f"{name}[{i}]", beta) for i, beta in enumerate(value)]
    if max(first, second) >= 1:
        raise ValueError(f"{name} must be below 1, and are {value}")
    return first, second


class Optimizer:
    """What all optimisers do. One of them says what a step is, in `_moved`.

    Attributes:
        parameters: what it moves.
        state: for each parameter the tensors kept from step to step: moments, and how many steps there were.
    """

    lr = Setting(_number, "The learning rate, which may be set at any time.")
    _kept: ClassVar[tuple[str, ...]] = ()  # what is in the state of a parameter that moved

    def __init__(self, parameters: Iterable[Tensor], **settings: Any) -> None:
        """`settings` are the numbers of the formula, all of them.

        Raises:
            ValueError, TypeError: for one that makes no sense, and for parameters that are none.
        """
        self._settings = self._checked(settings)
        self.parameters = list(parameters)
        self.state: list[State] = [{} for _ in self.parameters]
        if not self.parameters:
            raise ValueError("there are no parameters to move")
        for i, parameter in enumerate(self.parameters):
            if not isinstance(parameter, Tensor) or parameter._node is None or not parameter._node.leaf:
                raise TypeError(f"parameter {i} must be a tensor whose requires_grad was set to True")

    def step(self) -> None:
        """Move every parameter that has a gradient, or none. Issues its tasks and returns at once.

        Whether it is skipped shows later (see above); room for all of it is had before it begins.

        Raises:
            RuntimeError: if there is no gradient.
            QueueFull, TaskTooLarge: if the backlog or the limit has no room for all of it; nothing has changed then.
        """
        todo = [(p, p.grad, state) for p, state in zip(self.parameters, self.state, strict=True) if p.grad is not None]
        if not todo:
            raise RuntimeError("no parameter has a gradient: call `loss.backward()` before `step()`")
        runtime = runtime_of(todo[0][0]._value)
        versions: dict[Value, Value | None] = {}
        counts: dict[object, Tensor] = {}
        with no_grad(), runtime.transaction("step()", versions=versions):
            moved = [self._moved(p.detach(), gradient, state, counts) for p, gradient, state in todo]
            for (p, _, state), (new, kept) in zip(todo, moved, strict=True):
                versions[new._value] = p._value
                for name in kept:
                    versions[kept[name]._value] = state[name]._value if name in state else None
        # Nothing is launched yet: buffers that only the handles held are written over.
        for p, _, state in todo:
            new, kept = moved.pop(0)
            p._value = new._value
            state.update(kept)
        del new, kept, versions, counts
        runtime.dispatch()

    def zero_grad(self) -> None:
        """Set the gradient of every parameter to None."""
        for parameter in self.parameters:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """All settings, and what is kept for each parameter, in order. The tensors in it stay what they are."""
        return {**self._settings, "state": [_copied(state) for state in self.state]}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave: with its settings, too. Changes nothing if it does not fit.

        Raises:
            ValueError, TypeError: if it is of other parameters or of another optimiser, or damaged; naming what.
        """
        if not isinstance(saved, Mapping):
            raise TypeError(f"a state is a dict, as from `state_dict()`, not {type(saved).__name__}")
        _check_names(f"the state of {type(self).__name__}", saved, {*self._settings, "state"})
        settings, states = self._checked(saved), saved["state"]
        if not isinstance(states, list | tuple):
            raise TypeError(f"state must be a list with a dict for each parameter, not {type(states).__name__}")
        if len(states) != len(self.parameters):
            raise ValueError(f"this is the state of {len(states)} parameters, not of {len(self.parameters)}")
        for i, (parameter, state) in enumerate(zip(self.parameters, states, strict=True)):
            self._check_state(f"parameter {i}", parameter, state)
        self._settings, self.state = settings, [_copied(state) for state in states]

    def _checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All settings, or an error if one makes no sense."""
        found = {name: one for kind in reversed(type(self).__mro__) for name, one in vars(kind).items()}
        return {name: one.check(name, given[name]) for name, one in found.items() if isinstance(one, Setting)}

    def _check_state(self, what: str, parameter: Tensor, state: object) -> None:
        """Raise unless this is a state of a parameter: what is in `_kept`, or nothing if it never moved."""
        if not isinstance(state, Mapping):
            raise TypeError(f"the state of {what} must be a dict, not {type(state).__name__}")
        _check_names(f"the state of {what}", state, set(self._kept) if state else set())
        for name, kept in state.items():
            if not isinstance(kept, Tensor):
                raise TypeError(f"{name} of {what} must be a tensor, not {type(kept).__name__}")
            form = ((), _COUNT) if name == "step" else (parameter.shape, parameter.dtype)
            if (kept.shape, kept.dtype, kept.device) != (*form, parameter.device):
                raise ValueError(
                    f"{name} of {what} is {kept!r}, and the parameter {parameter!r}: it must have shape {form[0]},"
                    f" dtype {form[1]}, and the parameter's device and scheduler"
                )

    def _moved(
        self, parameter: Tensor, gradient: Tensor, state: State, counts: dict[object, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The parameter after a step, and what changes of its state, which began as zeros. Changes nothing itself."""
        raise NotImplementedError

    @staticmethod
    def _counted(parameter: Tensor, state: State, counts: dict[object, Tensor]) -> Tensor:
        """The number of steps after this one; made once for all parameters that had as many."""
        before = state.get("step")
        key = parameter.device if before is None else before._value
        if before is not None and key not in counts:
            counts[key] = before + 1
        elif key not in counts:
            submitter = Tasks(runtime_of(parameter._value))
            counts[key] = full((), 1, dtype=_COUNT, device=parameter.device, scheduler=submitter)
        return counts[key].detach()

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

    All but the parameters are attributes, too, and may be set at any time: `optimizer.lr = 0.01`.

    Raises:
        ValueError, TypeError: for numbers that are negative, infinite, NaN or none, here and where they are set.

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

    momentum = Setting(_number, "How much of the moving average stays from step to step.")
    weight_decay = Setting(_number, "How much of the parameter is added to its gradient.")
    nesterov = Setting(_truth, "Whether to look ahead by one step of momentum.")
    _kept = ("momentum",)

    def __init__(
        self, parameters: Iterable[Tensor], lr: float = 1e-3, *, momentum: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)

    def _checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        found = super()._checked(given)
        if found["nesterov"] and not found["momentum"]:
            raise ValueError("nesterov needs momentum: set that above 0, or nesterov to False first")
        return found

    def _moved(
        self, parameter: Tensor, gradient: Tensor, state: State, counts: dict[object, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        decay, average = self.weight_decay, state.get("momentum", 0.0)
        if not self.momentum:
            if not decay:
                return op("axpby", parameter, gradient, 1.0, -self.lr), {}
            return op("sgd_step", parameter, 0.0, gradient, self.lr, 0.0, decay), {}
        if decay:
            average = op("sgd_average", average, gradient, parameter, self.momentum, decay)
        else:
            average = op("axpby", average, gradient, self.momentum, 1.0)
        if self.nesterov:
            moved = op("sgd_step", parameter, average, gradient, self.lr, self.momentum, decay)
        else:
            moved = op("axpby", parameter, average, 1.0, -self.lr)
        return moved, {"momentum": average}


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

    All but the parameters are attributes, too, and may be set at any time: `optimizer.lr = 0.01`.

    Raises:
        ValueError, TypeError: for numbers that are negative, infinite, NaN or none, here and where they are set.

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

    betas = Setting(_betas, "How much of the averages of gradients and of their squares stays, each below 1.")
    eps = Setting(_number, "Keeps the quotient finite.")
    weight_decay = Setting(_number, "How much of the parameter goes at each step, times `lr`.")
    _kept = ("step", "mean", "square")

    def __init__(
        self, parameters: Iterable[Tensor], lr: float = 1e-3, *, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def _moved(
        self, parameter: Tensor, gradient: Tensor, state: State, counts: dict[object, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        (b1, b2), count = self.betas, self._counted(parameter, state, counts)
        mean = op("axpby", state.get("mean", 0.0), gradient, b1, 1 - b1)
        square = op("axpby_squared", state.get("square", 0.0), gradient, b2, 1 - b2)
        moved = op("adam_step", parameter, mean, square, count, self.lr, self.weight_decay, b1, b2, self.eps)
        return moved, {"step": count, "mean": mean, "square": square}


def _check_names(what: str, given: Mapping[str, Any], names: set[str]) -> None:
    if given.keys() != names:
        missing, unexpected = [sorted(map(str, found)) for found in (names - given.keys(), given.keys() - names)]
        raise ValueError(f"{what} does not fit: missing {missing}, unexpected {unexpected}; is it another optimiser's?")


def _copied(state: Mapping[str, Any]) -> State:
    """The same under handles of their own."""
    return {name: kept.detach() if isinstance(kept, Tensor) else kept for name, kept in state.items()}


__all__ = ["SGD", "AdamW", "Optimizer"]
