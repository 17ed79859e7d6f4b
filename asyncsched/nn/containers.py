"""Modules made of modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, ClassVar, Self, overload

from ..tensors.tensor import Tensor
from .layers import MaxPool2d
from .module import Module
from .parameterless import ReLU

__all__ = ["ModuleDict", "ModuleList", "Sequential"]


class _Numbered(Module):
    """Modules with the names "0", "1", ..., and indexed by number."""

    @overload
    def __getitem__(self, i: int) -> Module: ...

    @overload
    def __getitem__(self, i: slice) -> Self: ...

    def __getitem__(self, i: int | slice) -> Module | Self:
        found = self._list()[i]
        return found if isinstance(found, Module) else object.__new__(type(self))._set(found)

    def __setitem__(self, i: int, module: Module) -> None:
        modules = self._list()
        modules[i] = module
        self._set(modules)

    def __len__(self) -> int:
        return len(self._list())

    def __iter__(self) -> Iterator[Module]:
        return iter(self._list())

    def append(self, module: Module) -> Self:
        """Put a module at the end. Returns these modules."""
        return self._set([*self._list(), module])

    def extend(self, modules: Iterable[Module]) -> Self:
        """Put modules at the end. Returns these modules."""
        return self._set([*self._list(), *modules])

    def insert(self, index: int, module: Module) -> Self:
        """Put a module before the one of this number. Returns these modules."""
        modules = self._list()
        modules.insert(index, module)
        return self._set(modules)

    def _list(self) -> list[Module]:
        return [module for _, module in self._members(Module)]

    def _set(self, modules: list[Module]) -> Self:
        for module in modules:
            _check(type(self).__name__, module)
        for name in [name for name, _ in self._members(Module) if name in vars(self)]:
            delattr(self, name)
        for i, module in enumerate(modules):
            setattr(self, str(i), module)
        return self


class Sequential(_Numbered):
    """Modules called one after the other. Their names are "0", "1", ..., and they are indexed by number, as in a list.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         model = asc.nn.Sequential(asc.nn.Linear(3, 8, rng=0), asc.nn.ReLU(), asc.nn.Linear(8, 2, rng=1))
    ...         y = model(await s.put(np.ones((4, 3), np.float32)))
    ...         print(model[1], list(model.state_dict()), (await y).shape)
    >>> asc.run(main)
    ReLU() ['0.weight', '0.bias', '2.weight', '2.bias'] (4, 2)
    """

    def __init__(self, *modules: Module) -> None:
        self._set(list(modules))

    def forward(self, x: Tensor) -> Tensor:
        for module in _with_pools_first(self._list()):
            x = module(x)
        return x


def _with_pools_first(modules: list[Module]) -> list[Module]:
    """The modules, with each ReLU before a MaxPool2d moved behind it: nobody sees the tensor between them.

    The larger of 0 and a window's largest element is the same in either order, and so is each gradient (except in half
    precision, where NumPy keeps the sign of a zero). After the pool there are fewer elements to compute, forward and
    backward. If there are as many windows as elements, nothing would be saved.
    """
    order = list(modules)
    for i, (first, second) in enumerate(pairwise(modules)):
        patched = "forward" in vars(first) or "forward" in vars(second)
        if type(first) is ReLU and type(second) is MaxPool2d and second.stride != (1, 1) and not patched:
            order[i : i + 2] = second, first
    return order


class ModuleList(_Numbered):
    """Modules in a list. The module that has the list calls them as it likes. (A plain list as an attribute does as
    well.)

    >>> async def main():
    ...     async with asc.Scheduler("cpu"):
    ...         layers = asc.nn.ModuleList([asc.nn.Linear(2, 2), asc.nn.ReLU()]).append(asc.nn.Linear(2, 1))
    ...         print(len(layers), layers[-1], list(layers.state_dict()))
    >>> asc.run(main)
    3 Linear(weight=(1, 2), bias=(1,)) ['0.weight', '0.bias', '2.weight', '2.bias']
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        self._set(list(modules))


class ModuleDict(Module, Mapping[str, Module]):
    """Modules by name. The module that has them calls them as it likes.

    A name has no dot, no underscore in front, and is no attribute of modules, since it is a part of its tensors' names.
    Any other name is a KeyError.

    >>> async def main():
    ...     async with asc.Scheduler("cpu"):
    ...         heads = asc.nn.ModuleDict({"small": asc.nn.Linear(2, 1, bias=False)})
    ...         heads["large"] = asc.nn.Linear(2, 9, bias=False)
    ...         print(list(heads), list(heads.state_dict()))
    >>> asc.run(main)
    ['small', 'large'] ['small.weight', 'large.weight']
    """

    # By identity, as of other modules.
    __eq__: ClassVar[Callable[[object, object], bool]] = object.__eq__
    __hash__ = object.__hash__

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] = ()) -> None:
        self.update(modules)

    def __getitem__(self, key: str) -> Module:
        return self._dict()[key]

    def __setitem__(self, key: str, module: Module) -> None:
        _check(type(self).__name__, module)
        if not isinstance(key, str) or not key or "." in key or key.startswith("_") or hasattr(type(self), key):
            raise KeyError(
                f"ModuleDict: {key!r} cannot name a module: a name has no dot, no underscore in front, and is no"
                " attribute of modules"
            )
        setattr(self, key, module)

    def __delitem__(self, key: str) -> None:
        self.pop(key)

    def __len__(self) -> int:
        return len(self._dict())

    def __iter__(self) -> Iterator[str]:
        return iter(self._dict())

    def pop(self, key: str) -> Module:
        """Take a module out."""
        found = self[key]
        delattr(self, key)
        return found

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Put modules in, by name."""
        for key, module in dict(modules).items():
            self[key] = module

    def _dict(self) -> dict[str, Module]:
        return dict(self._members(Module))


def _check(name: str, module: Any) -> None:
    if isinstance(module, list | tuple):
        raise TypeError(f"{name}: a {type(module).__name__} is no module: nn.Sequential(*layers) takes those in it")
    if not isinstance(module, Module):
        raise TypeError(f"{name}: {module!r} is no module: nn.ReLU() is one, and nn.relu and nn.ReLU are not")
