"""Groups of parameters, and the settings that each has: the numbers of an optimiser's formula."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Generic, TypeVar

from .._arguments import check_number
from ..tensors.tensor import Tensor

Parameters = Iterable[Tensor] | Iterable[Mapping[str, Any]]
Check = Callable[[Mapping[str, Any]], dict[str, Any]]
T = TypeVar("T")


class Setting(Generic[T]):
    """A number of an optimiser's formula. It is checked whenever it is set, and part of the optimiser's state.

    Set on the optimiser it is set for all groups of parameters.
    """

    def __init__(self, check: Callable[[str, Any], T], doc: str) -> None:
        self.check, self.__doc__ = check, doc

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = name

    def __get__(self, optimizer: Any, kind: type[Any]) -> T:
        if optimizer is None:  # asked of the class, as `help` does
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

    # By identity: tensors are compared element by element.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(self, params: list[Tensor], settings: dict[str, Any], check: Check) -> None:
        self.params, self.settings, self._check = params, settings, check
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


def groups_of(parameters: Parameters, defaults: Mapping[str, Any], check: Check) -> list[Group]:
    """The groups that an optimiser was given: tensors as one, or a dict for each.

    Raises:
        ValueError, TypeError: for parameters that are none or are there twice, and for settings that make no sense.
    """
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
