"""The optimisers: stochastic gradient descent, RMSprop, Adam, Adam with decoupled weight decay, and their base.

Groups of parameters each have their settings: the numbers of a formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np

from .._arguments import check_number, check_state
from .._core.model import Value
from .._instead import OPTIMIZER, naming_arguments, no_attribute
from ..autograd import no_grad
from ..autograd.transaction import transaction
from ..tensors.functions import full
from ..tensors.functions._common import op
from ..tensors.handles import runtime_of
from ..tensors.tensor import Tensor

Parameters = Iterable[Tensor] | Iterable[Mapping[str, Any]]
Check = Callable[[Mapping[str, Any]], dict[str, Any]]
T = TypeVar("T")
Settings = dict[str, Any]  # of a group, by name
State = dict[str, Tensor]  # of a parameter, by name
Counts = dict[object, Tensor]  # counts of steps after this one, by the count before; for a first step by the device
Moved = tuple[Tensor, State]  # a parameter after a step, and the changes of its state
_COUNT = np.dtype("i8")  # of the number of steps


class Setting(Generic[T]):
    """A number of an optimiser's formula. It is checked whenever it is set, and is part of the optimiser's state.

    Setting it on the optimiser sets it for all groups of parameters.
    """

    def __init__(self, check: Callable[[str, Any], T], doc: str) -> None:
        self.check = check
        self.__doc__ = doc

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = name

    def __get__(self, optimizer: Any, kind: type[Any]) -> T:
        if optimizer is None:  # read from the class, as `help` does
            return self  # type: ignore[return-value]
        found: list[T] = [group[self._name] for group in optimizer.param_groups]
        if any(one != found[0] for one in found):
            raise ValueError(f"{self._name} is {found} in the groups: read `optimizer.param_groups[i][{self._name!r}]`")
        return found[0]

    def __set__(self, optimizer: Any, value: T) -> None:
        checked = [group.changed(self._name, value) for group in optimizer.param_groups]
        for group, settings in zip(optimizer.param_groups, checked, strict=True):
            group.settings = settings


def number(name: str, value: Any) -> float:
    check_number(name, value, zero=True)
    return float(value)


def truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return value


def betas(name: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"{name} must be two numbers, not {value!r}")
    first, second = [number(f"{name}[{i}]", beta) for i, beta in enumerate(value)]
    if max(first, second) >= 1:
        raise ValueError(f"{name} must be below 1, and are {value}")
    return first, second


class Group(MutableMapping[str, Any]):
    """Parameters and their settings, as a dict: `group["lr"] = 0.01`. Keys are "params" and the settings' names.

    Attributes:
        settings: all of them, checked.
        initial_lr: the learning rate that the first schedule found.
    """

    # By identity, since tensors compare element by element.
    __eq__: ClassVar[Callable[[object, object], bool]] = object.__eq__
    __hash__ = object.__hash__

    def __init__(self, params: list[Tensor], settings: dict[str, Any], check: Check) -> None:
        self.params = params
        self.settings: Settings = settings
        self._check = check
        self.initial_lr: float | None = None

    def __getitem__(self, name: str) -> Any:
        return self.params if name == "params" else self.settings[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.settings = self.changed(name, value)

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"a group always has all settings: set {name!r} instead")

    def __iter__(self) -> Iterator[str]:
        return iter(("params", *self.settings))

    def __len__(self) -> int:
        return 1 + len(self.settings)

    def changed(self, name: str, value: Any) -> dict[str, Any]:
        """The settings with one changed, or an error if it makes no sense."""
        if name not in self.settings:
            raise KeyError(f"{name!r} is no setting of this optimiser: those are {', '.join(self.settings)}")
        return self._check({**self.settings, name: value})

    def __repr__(self) -> str:
        settings = [f"{name}={value}" for name, value in self.settings.items()]
        return f"Group({len(self.params)} parameters, {', '.join(settings)})"


def _groups_of(parameters: Parameters, defaults: Mapping[str, Any], check: Check) -> list[Group]:
    """The groups of an optimiser: one of all tensors, or one for each dict.

    Raises:
        ValueError, TypeError: for objects that are no parameters, for one that is there twice, and for settings that
        make no sense."""
    if not isinstance(parameters, Iterable) or hasattr(parameters, "named_parameters"):  # `nn.Sequential` is iterable
        raise TypeError(f"an optimiser takes tensors, as `model.parameters()` gives, not {type(parameters).__name__}")
    given = list(parameters)
    if not any(isinstance(one, Mapping) for one in given):
        given = [{"params": given}]
    groups = []
    for i, one in enumerate(given):
        if not isinstance(one, Mapping) or "params" not in one:
            raise TypeError(f"group {i} must be a dict with 'params' and settings of its own, not {one!r}")
        settings = {name: value for name, value in one.items() if name != "params"}
        if unknown := settings.keys() - defaults.keys():
            raise ValueError(f"group {i} has {sorted(unknown)}, and the settings are {', '.join(defaults)}")
        params = [one["params"]] if isinstance(one["params"], Tensor) else list(one["params"])
        groups.append(Group(params, check({**defaults, **settings}), check))
    _check_parameters([tensor for group in groups for tensor in group.params])
    return groups


def _check_parameters(parameters: list[Any]) -> None:
    if not parameters:
        raise ValueError("there are no parameters to move")
    for i, parameter in enumerate(parameters):
        if not isinstance(parameter, Tensor) or parameter._node is None or not parameter._node.leaf:
            raise TypeError(f"parameter {i} must be a tensor whose requires_grad was set to True")
    if len({id(parameter) for parameter in parameters}) < len(parameters):
        raise ValueError("a parameter is there twice, and would be moved twice")


class Optimizer:
    """The base of all optimisers. Each defines its step in `_moved`.

    Attributes:
        param_groups: a `Group` for each dict of parameters, or one for all. Each has all settings.
        parameters: all parameters, group by group.
        state: for each parameter the tensors kept from step to step: moments, and how many steps there were.
    """

    lr: Setting[float] = Setting(number, "The learning rate. It may be set at any time.")
    # The names of the tensors in a parameter's state; several tuples if they depend on the settings.
    _kept: ClassVar[tuple[tuple[str, ...], ...]] = ()

    def __init__(self, parameters: Parameters, **settings: Any) -> None:
        """`settings` are all numbers of the formula. A group may have its own.

        Raises:
            ValueError, TypeError: for settings that make no sense, for objects that are no parameters, and for one that
                is there twice.
        """
        self.param_groups: list[Group] = _groups_of(parameters, self._checked(settings), self._checked)
        self.parameters: list[Tensor] = [parameter for group in self.param_groups for parameter in group.params]
        self.state: list[State] = [{} for _ in self.parameters]
        runtime_of(self.parameters[0]._value).optimizers.add(self)

    @naming_arguments
    def step(self) -> None:
        """Move every parameter that has a gradient, or none. Issues its tasks and returns at once.

        Whether it is skipped shows later (see above). It begins when there is room for all of it.

        Raises:
            RuntimeError: if there is no gradient.
            QueueFull, TaskTooLarge: if the backlog or the limit has no room for all tasks; nothing has changed then.
        """
        groups = [group for group in self.param_groups for _ in group.params]
        found = zip(groups, self.parameters, self.state, strict=True)
        todo = [(group, p, p.grad, state) for group, p, state in found if p.grad is not None]
        if not todo:
            raise RuntimeError("no parameter has a gradient: call `loss.backward()` before `step()`")
        runtime = runtime_of(todo[0][1]._value)
        versions: dict[Value, Value | None] = {}
        counts: Counts = {}
        with no_grad(), transaction(runtime, "step()", versions=versions):
            moved = [
                self._moved(group.settings, p.detach(), gradient, state, counts) for group, p, gradient, state in todo
            ]
            for (_, p, _, state), (new, kept) in zip(todo, moved, strict=True):
                versions[new._value] = p._value
                for name in kept:
                    versions[kept[name]._value] = state[name]._value if name in state else None
        first = moved[0][0]._value.task
        assert first is not None
        assert first.move is not None
        for watcher in runtime.step_watchers:
            watcher.stepped(first.move.commit)
        del first
        # Nothing is launched yet, so buffers that only these handles hold may be written over once the handles have
        # moved on.
        for _, p, _, state in todo:
            new, kept = moved.pop(0)
            p._move(new)
            state.update(kept)
        del new, kept, versions, counts
        runtime.dispatch()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradient of every parameter to None; `set_to_none` can only be True."""
        if set_to_none is not True:
            raise ValueError("zero_grad drops gradients, and writes no zeros: leave `set_to_none` out")
        for parameter in self.parameters:
            if parameter.grad is not None:  # one that is frozen has none, and takes none
                parameter.grad = None

    if not TYPE_CHECKING:  # for which any name would be there then

        def __getattr__(self, name: str) -> Any:
            """Say what to write instead."""
            raise no_attribute(f"{type(self).__name__!r} object", name, OPTIMIZER, type(self))

    def state_dict(self) -> dict[str, Any]:
        """The settings of all groups, and the state of each parameter, in order. Its tensors do not change."""
        numbers = count()
        groups = [{**one.settings, "params": [next(numbers) for _ in one.params]} for one in self.param_groups]
        return {"param_groups": groups, "state": [_copied(state) for state in self.state]}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Set the state that `state_dict` gave, settings included. Changes nothing if it does not fit.

        Raises:
            ValueError, TypeError: if it is of other parameters or of another optimiser, or damaged. The message names
                the entry.
        """
        check_state(saved)
        _check_names(f"the state of {type(self).__name__}", saved, {"param_groups", "state"})
        forms, states = _check_list("param_groups", saved["param_groups"]), _check_list("state", saved["state"])
        if len(forms) != len(self.param_groups):
            raise ValueError(f"this is the state of {len(forms)} groups of parameters, not of {len(self.param_groups)}")
        settings = [self._loaded(i, group, forms[i]) for i, group in enumerate(self.param_groups)]
        if len(states) != len(self.parameters):
            raise ValueError(f"this is the state of {len(states)} parameters, not of {len(self.parameters)}")
        for i, (parameter, state) in enumerate(zip(self.parameters, states, strict=True)):
            _check_state(f"parameter {i}", parameter, state, self._kept)
        for group, found in zip(self.param_groups, settings, strict=True):
            group.settings = found
        self.state = [_copied(state) for state in states]

    def _loaded(self, i: int, group: Group, form: Any) -> dict[str, Any]:
        """The settings of a saved group, checked."""
        what = f"group {i} of the state of {type(self).__name__}"
        if not isinstance(form, Mapping):
            raise TypeError(f"{what} must be a dict, not {type(form).__name__}")
        _check_names(what, form, {"params", *group.settings})
        if len(_check_list("params", form["params"])) != len(group.params):
            raise ValueError(f"{what} has {len(form['params'])} parameters, not {len(group.params)}")
        return self._checked(form)

    @classmethod  # groups keep this function: a method bound to the optimiser would refer back to it
    def _checked(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """All settings, or an error if one makes no sense."""
        found = {name: one for kind in reversed(cls.__mro__) for name, one in vars(kind).items()}
        return {name: one.check(name, given[name]) for name, one in found.items() if isinstance(one, Setting)}

    def _moved(self, settings: Settings, parameter: Tensor, gradient: Tensor, state: State, counts: Counts) -> Moved:
        """The parameter after a step, and the changes of its state, which began as zeros. Changes nothing itself."""
        raise NotImplementedError

    @staticmethod
    def _counted(parameter: Tensor, state: State, counts: Counts) -> Tensor:
        """The count of steps after this one. Parameters with equal counts share the tensor."""
        before = state.get("step")
        key = parameter.device if before is None else before._value
        if before is None and key not in counts:
            runtime = runtime_of(parameter._value)
            counts[key] = full((), 1, dtype=_COUNT, device=parameter.device, scheduler=runtime)
        elif before is not None and key not in counts:
            counts[key] = before + 1
        return counts[key].detach()

    def __repr__(self) -> str:
        rates = list(dict.fromkeys([group["lr"] for group in self.param_groups]))
        return f"{type(self).__name__}({len(self.parameters)} parameters, lr={', '.join(map(str, rates))})"


def _check_state(what: str, parameter: Tensor, state: object, kept: Sequence[Sequence[str]]) -> None:
    """Raise unless this is a state of a parameter: with the names of one tuple in `kept`, or empty if it never
    moved."""
    if not isinstance(state, Mapping):
        raise TypeError(f"the state of {what} must be a dict, not {type(state).__name__}")
    if state and not any(state.keys() == set(names) for names in kept):
        _check_names(f"the state of {what}", state, set(kept[0]))
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} of {what} must be a tensor, not {type(tensor).__name__}")
        form = ((), _COUNT) if name == "step" else (parameter.shape, parameter.dtype)
        if (tensor.shape, tensor.dtype, tensor.device) != (*form, parameter.device):
            raise ValueError(
                f"{name} of {what} is {tensor!r}, and the parameter {parameter!r}: it must have shape {form[0]},"
                f" dtype {form[1]}, and the parameter's device and scheduler"
            )


def _check_names(what: str, given: Mapping[str, Any], names: set[str]) -> None:
    """Raise unless it has these names."""
    if given.keys() != names:
        missing, unexpected = [sorted(map(str, found)) for found in (names - given.keys(), given.keys() - names)]
        raise ValueError(f"{what} does not fit: missing {missing}, unexpected {unexpected}; is it another optimiser's?")


def _check_list(name: str, given: Any) -> Sequence[Any]:
    """Raise unless it is a list."""
    if not isinstance(given, list | tuple):
        raise TypeError(f"{name} must be a list, as from `state_dict()`, not {type(given).__name__}")
    return given


def _copied(state: Mapping[str, Tensor]) -> State:
    """The same tensors under new handles."""
    return {name: kept.detach() for name, kept in state.items()}


class SGD(Optimizer):
    """Stochastic gradient descent: p <- p - lr d, where d is the gradient g + weight_decay p.

    With momentum, d is b <- momentum b + (g + weight_decay p), where b begins as the first gradient; with `nesterov` d
    is g + weight_decay p + momentum b.

    Args:
        parameters: tensors with `requires_grad` set, or dicts of them (see `Optimizer.param_groups`).
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

    momentum: Setting[float] = Setting(number, "How much of the moving average stays from step to step.")
    weight_decay: Setting[float] = Setting(number, "How much of the parameter is added to its gradient.")
    nesterov: Setting[bool] = Setting(truth, "Whether to look ahead by one step of momentum.")
    _kept = (("momentum",),)

    @naming_arguments
    def __init__(
        self, parameters: Parameters, lr: float = 1e-3, *, momentum: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)

    @classmethod
    def _checked(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        found = super()._checked(given)
        if found["nesterov"] and not found["momentum"]:
            raise ValueError("nesterov needs momentum: set that above 0, or nesterov to False first")
        return found

    def _moved(self, settings: Settings, parameter: Tensor, gradient: Tensor, state: State, counts: Counts) -> Moved:
        lr, momentum, decay = settings["lr"], settings["momentum"], settings["weight_decay"]
        if decay:
            gradient = op("axpby", parameter, gradient, decay, 1.0)
        if not momentum:
            return op("axpby", parameter, gradient, 1.0, -lr), {}
        average = op("axpby", state.get("momentum", 0.0), gradient, momentum, 1.0)
        change = op("axpby", average, gradient, momentum, 1.0) if settings["nesterov"] else average
        return op("axpby", parameter, change, 1.0, -lr), {"momentum": average}


class RMSprop(Optimizer):
    """RMSprop (Hinton's lecture 6e): each gradient is divided by the root of an average of its squares.

    With the gradient g + weight_decay p in the place of g: v <- alpha v + (1 - alpha) g**2, which begins at zero, and
    d = g / (sqrt(v) + eps); then p <- p - lr d. With momentum b <- momentum b + d takes the place of d.

    Args:
        parameters: tensors with `requires_grad` set, or dicts of them (see `Optimizer.param_groups`).
        lr: the learning rate.
        alpha: how much of the average stays.
        eps: keeps the quotient finite.
        weight_decay: how much of the parameter is added to its gradient.
        momentum: how much of b stays from step to step.

    All but the parameters are attributes, too, and may be set at any time: `optimizer.lr = 0.01`.

    Raises:
        ValueError, TypeError: for numbers that are negative, infinite, NaN or none, here and where they are set.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         w = await s.put(np.array(4.0))
    ...         w.requires_grad = True
    ...         optimizer = asc.optim.RMSprop([w], lr=0.1)
    ...         (w * w).backward()
    ...         optimizer.step()
    ...         return await w.item()
    >>> print(f"{asc.run(main):.3f}")               # the average of squares begins with a hundredth
    3.000
    """

    alpha: Setting[float] = Setting(number, "How much of the average of squares stays.")
    eps: Setting[float] = Setting(number, "Keeps the quotient finite.")
    weight_decay: Setting[float] = Setting(number, "How much of the parameter is added to its gradient.")
    momentum: Setting[float] = Setting(number, "How much of the moving average stays from step to step.")
    _kept = (("square",), ("square", "momentum"))

    @naming_arguments
    def __init__(
        self, parameters: Parameters, lr: float = 1e-2, *, alpha: float = 0.99, eps: float = 1e-8,
        weight_decay: float = 0.0, momentum: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum)

    def _moved(self, settings: Settings, parameter: Tensor, gradient: Tensor, state: State, counts: Counts) -> Moved:
        lr, alpha, momentum, decay = [settings[name] for name in ("lr", "alpha", "momentum", "weight_decay")]
        if decay:
            gradient = op("axpby", parameter, gradient, decay, 1.0)
        kept = {"square": op("axpby_squared", state.get("square", 0.0), gradient, alpha, 1 - alpha)}
        change = op("rms_scaled", gradient, kept["square"], settings["eps"])
        if momentum:
            change = kept["momentum"] = op("axpby", state.get("momentum", 0.0), change, momentum, 1.0)
        return op("axpby", parameter, change, 1.0, -lr), kept


class Adam(Optimizer):
    """Adam (Kingma and Ba, arXiv:1412.6980).

    At step t, from 1, with the gradient g + weight_decay p in the place of g: m <- b1 m + (1 - b1) g and
    v <- b2 v + (1 - b2) g**2, which begin at zero; then p <- p - lr (m / (1 - b1**t)) / (sqrt(v / (1 - b2**t)) + eps).

    Args:
        parameters: tensors with `requires_grad` set, or dicts of them (see `Optimizer.param_groups`).
        lr: the learning rate.
        betas: b1 and b2, both below 1.
        eps: keeps the quotient finite.
        weight_decay: how much of the parameter is added to its gradient.

    All but the parameters are attributes, too, and may be set at any time: `optimizer.lr = 0.01`.

    Raises:
        ValueError, TypeError: for numbers that are negative, infinite, NaN or none, here and where they are set.

    >>> async def main():
    ...     async with asc.Scheduler("cpu"):
    ...         body, head = asc.nn.Linear(2, 2), asc.nn.Linear(2, 1)
    ...         groups = [{"params": body.parameters(), "lr": 1e-4}, {"params": head.parameters()}]
    ...         optimizer = asc.optim.Adam(groups, lr=1e-3)
    ...         optimizer.param_groups[1]["weight_decay"] = 0.1
    ...         print(optimizer, optimizer.param_groups[1])
    >>> asc.run(main)
    Adam(4 parameters, lr=0.0001, 0.001) Group(2 parameters, lr=0.001, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.1)
    """

    betas: Setting[tuple[float, float]] = Setting(
        betas, "How much of the averages of gradients and of their squares stays, each below 1."
    )
    eps: Setting[float] = Setting(number, "Keeps the quotient finite.")
    weight_decay: Setting[float] = Setting(number, "How much of the parameter is added to its gradient.")
    _kept = (("step", "mean", "square"),)
    _decoupled = False  # whether the decay is not part of the gradient

    @naming_arguments
    def __init__(
        self, parameters: Parameters, lr: float = 1e-3, *, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def _moved(self, settings: Settings, parameter: Tensor, gradient: Tensor, state: State, counts: Counts) -> Moved:
        (b1, b2), decay, count = settings["betas"], settings["weight_decay"], self._counted(parameter, state, counts)
        if decay and not self._decoupled:
            gradient, decay = op("axpby", parameter, gradient, decay, 1.0), 0.0
        mean = op("axpby", state.get("mean", 0.0), gradient, b1, 1 - b1)
        square = op("axpby_squared", state.get("square", 0.0), gradient, b2, 1 - b2)
        moved = op("adam_step", parameter, mean, square, count, settings["lr"], decay, b1, b2, settings["eps"])
        return moved, {"step": count, "mean": mean, "square": square}


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101).

    At step t, from 1: m <- b1 m + (1 - b1) g and v <- b2 v + (1 - b2) g**2, which begin at zero; then
    p <- p - lr weight_decay p - lr (m / (1 - b1**t)) / (sqrt(v / (1 - b2**t)) + eps).

    Args:
        parameters: tensors with `requires_grad` set, or dicts of them (see `Optimizer.param_groups`).
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

    weight_decay: Setting[float] = Setting(number, "How much of the parameter goes at each step, times `lr`.")
    _decoupled = True

    @naming_arguments
    def __init__(
        self, parameters: Parameters, lr: float = 1e-3, *, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr, betas=betas, eps=eps, weight_decay=weight_decay)
