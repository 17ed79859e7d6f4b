"""Modules without parameters of their own: functions as modules, and modules made of modules.

The functions are of each element, the softmax, and losses. A loss takes predictions x and a target. `reduction` is
"mean", "sum" or "none"; weights are buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self, dataclass_transform, overload

from .._instead import naming_arguments
from ..tensors.tensor import Tensor
from . import functional as F
from .functional.losses import Reduction
from .layers import MaxPool2d
from .module import Module

__all__ = [
    "GELU", "AdaptiveAvgPool2d", "BCEWithLogitsLoss", "CrossEntropyLoss", "HuberLoss", "KLDivLoss", "L1Loss",
    "LeakyReLU", "LogSoftmax", "MSELoss", "ModuleDict", "ModuleList", "NLLLoss", "ReLU", "Sequential", "SiLU",
    "Sigmoid", "SmoothL1Loss", "Softmax", "Softplus", "Tanh",
]  # fmt: skip


@dataclass_transform(eq_default=False, field_specifiers=(field,))
class _Function(Module):
    """A function of one tensor. Its options are the arguments of the constructor, and attributes, by the same names."""

    _function: Callable[..., Tensor]
    _options: Collection[str]

    def __init_subclass__(cls, function: Callable[..., Tensor] | None = None) -> None:
        if function is not None:
            dataclass(cls, eq=False, repr=False)
            setattr(cls, "__init__", naming_arguments(cls.__init__))  # noqa: B010  # verified types
            cls._function = staticmethod(function)
            cls._options = signature(function).parameters.keys() - {"x", "logits", "target"}

    def _of(self, *operands: Tensor) -> Tensor:
        return self._function(*operands, **{name: getattr(self, name) for name in self._options})

    def forward(self, x: Tensor) -> Tensor:
        return self._of(x)


@dataclass(eq=False, repr=False)
class _Loss(_Function):
    """A function of predictions and a target."""

    reduction: Reduction = field(default="mean", kw_only=True)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]
        return self._of(x, target)


class ReLU(_Function, function=F.relu):
    """The larger of each element and 0.

    >>> x = await s.put(np.array([-1.0, 2.0]))
    >>> await nn.ReLU()(x)
    array([0., 2.])
    """


class GELU(_Function, function=F.gelu):
    """x times the normal distribution function of x, or its approximation by tanh.

    >>> x = await s.put(np.array([0.0, 1.0]))
    >>> await nn.GELU()(x)
    array([0.        , 0.84134475])
    """

    approximate: Literal["none", "tanh"] = "none"


class Sigmoid(_Function, function=F.sigmoid):
    """1 / (1 + exp(-x)).

    >>> x = await s.put(np.array([0.0, 2.0]))
    >>> await nn.Sigmoid()(x)
    array([0.5       , 0.88079708])
    """


class Tanh(_Function, function=F.tanh):
    """The hyperbolic tangent.

    >>> x = await s.put(np.array([0.0, 2.0]))
    >>> await nn.Tanh()(x)
    array([0.        , 0.96402758])
    """


class SiLU(_Function, function=F.silu):
    """x sigmoid(x).

    >>> x = await s.put(np.array([0.0, 2.0]))
    >>> await nn.SiLU()(x)
    array([0.        , 1.76159416])
    """


class LeakyReLU(_Function, function=F.leaky_relu):
    """Each element where it is positive, else `negative_slope` times it.

    >>> x = await s.put(np.array([-1.0, 2.0]))
    >>> await nn.LeakyReLU(0.1)(x)
    array([-0.1,  2. ])
    """

    negative_slope: float = 0.01


class Softplus(_Function, function=F.softplus):
    """log(1 + exp(beta x)) / beta, and x itself where beta x is above `threshold`.

    >>> x = await s.put(np.array([0.0, 2.0]))
    >>> await nn.Softplus()(x)
    array([0.69314718, 2.12692801])
    """

    beta: float = 1.0
    threshold: float = 20.0


class Softmax(_Function, function=F.softmax):
    """exp(x) over its sum along an axis.

    >>> x = await s.put(np.array([0.0, 0.0]))
    >>> await nn.Softmax()(x)
    array([0.5, 0.5])
    """

    axis: int = -1


class LogSoftmax(_Function, function=F.log_softmax):
    """The logarithm of the softmax along an axis.

    >>> x = await s.put(np.array([0.0, 0.0]))
    >>> await nn.LogSoftmax()(x)
    array([-0.69314718, -0.69314718])
    """

    axis: int = -1


class AdaptiveAvgPool2d(_Function, function=F.adaptive_avg_pool2d):
    """The means of windows that are laid so that they give `output_size` rows and columns; None for as many as there
    are.

    >>> nn.AdaptiveAvgPool2d(2)(asc.ones((1, 3, 8, 8))).shape
    (1, 3, 2, 2)
    """

    output_size: int | Sequence[int | None] | None


class MSELoss(_Loss, function=F.mse_loss):
    """The squared differences between x and the target.

    >>> x = await s.put(np.array([1.0, 3.0]))
    >>> y = await s.put(np.array([2.0, 5.0]))
    >>> await nn.MSELoss()(x, y).item()
    2.5
    """


class L1Loss(_Loss, function=F.l1_loss):
    """The absolute differences between x and the target.

    >>> x = await s.put(np.array([1.0, 3.0]))
    >>> y = await s.put(np.array([2.0, 5.0]))
    >>> await nn.L1Loss()(x, y).item()
    1.5
    """


class SmoothL1Loss(_Loss, function=F.smooth_l1_loss):
    """The absolute difference d between x and the target, minus beta / 2; below beta it is d**2 / (2 beta).

    >>> x = await s.put(np.array([1.0, 3.0]))
    >>> y = await s.put(np.array([1.5, 5.0]))
    >>> await nn.SmoothL1Loss()(x, y).item()
    0.8125
    """

    beta: float = field(default=1.0, kw_only=True)


class HuberLoss(_Loss, function=F.huber_loss):
    """Half the squared difference d between x and the target; above delta it is delta (d - delta / 2).

    >>> x = await s.put(np.array([1.0, 3.0]))
    >>> y = await s.put(np.array([1.5, 5.0]))
    >>> await nn.HuberLoss()(x, y).item()
    0.8125
    """

    delta: float = field(default=1.0, kw_only=True)


class BCEWithLogitsLoss(_Loss, function=F.binary_cross_entropy_with_logits):
    """Minus the logarithm of the probability that the sigmoid of x gives to a target from 0 to 1.

    >>> x = await s.put(np.array([0.0, 0.0]))
    >>> y = await s.put(np.array([1.0, 0.0]))
    >>> await nn.BCEWithLogitsLoss()(x, y).item()
    0.6931471805599453
    """

    weight: Tensor | None = None
    pos_weight: Tensor | None = field(default=None, kw_only=True)


class KLDivLoss(_Loss, function=F.kl_div):
    """The distance of a distribution, given by the logarithms of its probabilities, from the target.

    >>> x = await s.put(np.array([[0.5, 0.5]]))
    >>> y = await s.put(np.array([[0.5, 0.5]]))
    >>> await nn.KLDivLoss(reduction="batchmean")(asc.log(x), y).item()
    0.0
    """

    reduction: Reduction | Literal["batchmean"] = field(default="mean", kw_only=True)  # type: ignore[assignment]
    log_target: bool = field(default=False, kw_only=True)


class NLLLoss(_Loss, function=F.nll_loss):
    """Minus the number at the target's class, where x are logarithms of probabilities.

    >>> x = await s.put(np.array([[-0.5, -1.0]]))
    >>> y = await s.put(np.array([1]))
    >>> await nn.NLLLoss()(x, y).item()
    1.0
    """

    weight: Tensor | None = None
    ignore_index: int = field(default=-100, kw_only=True)


class CrossEntropyLoss(_Loss, function=F.cross_entropy):
    """Minus the logarithm of the softmax of x at the target: class numbers, or probabilities.

    >>> x = await s.put(np.array([[0.0, 0.0]]))
    >>> y = await s.put(np.array([1]))
    >>> await nn.CrossEntropyLoss()(x, y).item()
    0.6931471805599453
    """

    weight: Tensor | None = None
    ignore_index: int = field(default=-100, kw_only=True)
    label_smoothing: float = field(default=0.0, kw_only=True)


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
