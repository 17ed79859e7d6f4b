"""The base of all modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from copy import deepcopy
from inspect import signature
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar

from .._arguments import check_plain, check_state
from .._instead import MODULE, naming_arguments, no_attribute
from ..tensors.arguments import kind_of
from ..tensors.tensor import Tensor

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class Forward(Protocol[P, R_co]):
    """Any class with a `forward`. A call of a module has the arguments and the result of `forward`."""

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class Module:
    """A part of a network: a function with parameters.

    A subclass sets tensors, modules and lists of these as attributes, and defines `forward`. The tensors are its state,
    those whose `requires_grad` was set are its parameters, and the others its buffers. Attributes with a leading
    underscore are private.

    >>> class Scale(asc.nn.Module):
    ...     def __init__(self):
    ...         self.factor = asc.full((), 2.0)
    ...         self.factor.requires_grad = True
    ...     def forward(self, x):
    ...         return self.factor * x
    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         model = Scale()
    ...         y = model(await s.put(np.ones(3)))
    ...         print([name for name, _ in model.named_parameters()], await y)
    >>> asc.run(main)
    ['factor'] [2. 2. 2.]
    """

    training: bool = True
    _not_saved: Set[str] = frozenset()  # names of buffers that are not part of a state

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """A call of the module does this. It issues tasks and returns tensors at once."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward()")

    def __call__(self: Forward[P, R_co], *args: P.args, **kwargs: P.kwargs) -> R_co:
        return self.forward(*args, **kwargs)

    def named_modules(self) -> Iterator[tuple[str, Module]]:
        """This module, named "", and all modules in it, named as in "layers.0.norm"."""
        return _once((prefix[:-1], module) for prefix, module in self._walk(""))

    def modules(self) -> Iterator[Module]:
        """This module and all modules in it, each once."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules among the attributes of this one, each once, by name."""
        return _once(self._members(Module))

    def children(self) -> Iterator[Module]:
        """The modules among the attributes of this one, each once."""
        return (module for _, module in self.named_children())

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """All tensors that are no parameters, by name, each once."""
        return _once((name, tensor) for name, tensor in self._tensors().items() if not tensor.requires_grad)

    def buffers(self) -> Iterator[Tensor]:
        """All tensors that are no parameters, each once."""
        return (buffer for _, buffer in self.named_buffers())

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """All parameters, named as in "layers.0.weight", each once, under the first of its names."""
        return _once((name, tensor) for name, tensor in self._tensors().items() if tensor.requires_grad)

    def parameters(self) -> Iterator[Tensor]:
        """All parameters, each once."""
        return (parameter for _, parameter in self.named_parameters())

    def train(self, mode: bool = True) -> Self:
        """Set this module and all in it to training, or with False to use. Returns the module."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Set this module and all in it to use: no dropout. Returns the module."""
        return self.train(False)

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call `fn` with every module in this one and then with this one. Returns the module."""
        check_plain("fn", fn)
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    @naming_arguments
    def to(self, device: object) -> Self:
        """Move all tensors and their gradients to another device of the same scheduler. Returns the module.

        The tensors keep their handles. An optimiser's state is not moved: make the optimiser afterwards.

        Raises:
            ValueError: for a device that the scheduler does not have.
            QueueFull: if the backlog has no room for all of them; then none has moved.
        """
        tensors = {id(tensor): tensor for tensor in self._tensors().values()}.values()
        moved = [(t.detach().to(device), None if t.grad is None else t.grad.to(device)) for t in tensors]
        for tensor, (new, grad) in zip(tensors, moved, strict=True):
            tensor._move(new)
            if tensor._node is not None:
                tensor._node.device, tensor._node.grad = new.device, grad
        return self

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Set an attribute that is state, but no parameter. With `persistent=False` it is not in `state_dict()`.

        Any tensor that is set as an attribute is a buffer, unless its `requires_grad` is set. An optimiser's step does
        not cover buffers that a module moves in its forward pass.

        Raises:
            KeyError: for a name that is taken, is empty, has a dot or begins with an underscore.
            TypeError: for anything but None or a tensor without `requires_grad`.
        """
        if not isinstance(name, str) or not name or "." in name or name.startswith("_"):
            raise KeyError(f"register_buffer: {name!r} cannot name a buffer: no dot, no underscore in front")
        if hasattr(self, name):
            raise KeyError(f"register_buffer: {type(self).__name__} has an attribute {name!r}: use another name")
        if tensor is not None and (not isinstance(tensor, Tensor) or tensor.requires_grad):
            raise TypeError(f"register_buffer: {name} must be a tensor without requires_grad, or None, not {tensor!r}")
        setattr(self, name, tensor)
        if not persistent:
            vars(self).setdefault("_not_saved", set()).add(name)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of all parameters; `set_to_none` can only be True."""
        if set_to_none is not True:
            raise ValueError("zero_grad drops gradients, and writes no zeros: leave `set_to_none` out")
        for parameter in self.parameters():
            parameter.grad = None

    def get_extra_state(self) -> Any:
        """State other than tensors, of values that JSON can hold; None if there is none. It is part of `state_dict`."""
        return None

    def set_extra_state(self, state: Any) -> None:
        """Set the state that `get_extra_state` gave."""
        raise ValueError(f"{type(self).__name__} has no extra state")

    def state_dict(self) -> dict[str, Any]:
        """The tensors as they are now, by name, and extra states, under "_extra_state" after the module's name.

        Further training does not change the result, since tensors are values. The result keeps the old values in
        memory.
        """
        state: dict[str, Any] = {name: tensor.detach() for name, tensor in self._tensors(saved=True).items()}
        return state | {name: module.get_extra_state() for name, module in self._with_extra_state().items()}

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Set the tensors to those of a state: all of them, or none if one does not fit.

        Args:
            state: tensors by name, as from `state_dict()` or `await load(path)`, of the scheduler and devices of the
                module. Extra states may be missing.
            strict: refuse missing and unexpected names. Without it they are left out.

        Raises:
            KeyError: for missing and unexpected names.
            ValueError, TypeError: for an entry that does not fit. The message names it.
        """
        check_state(state)
        own, extra = self._tensors(saved=True), self._with_extra_state()
        missing, unexpected = own.keys() - state.keys(), state.keys() - own.keys() - extra.keys()
        if strict and (missing or unexpected):
            raise KeyError(
                f"the state does not fit {type(self).__name__}: missing {sorted(missing)}, unexpected"
                f" {sorted(unexpected, key=str)}; with strict=False these are left out"
            )
        found = [(own[name], state[name], name) for name in own if name in state]
        for parameter, given, name in found:
            _check_fits(parameter, given, name)
        for name in extra.keys() & state.keys():  # first, since it may refuse its argument
            extra[name].set_extra_state(state[name])
        for parameter, given, _ in found:
            parameter._move(given.detach())

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A new module with the present values of the tensors, without gradients. Copies no bytes."""
        made = memo[id(self)] = object.__new__(type(self))
        for tensor in self._tensors().values():
            if id(tensor) not in memo:
                memo[id(tensor)] = same = tensor.detach()
                same.requires_grad = tensor.requires_grad
        vars(made).update(deepcopy(vars(self), memo))
        return made

    if not TYPE_CHECKING:  # with it, type checkers would find any name

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(f"{type(self).__name__!r} object", name, MODULE, type(self))

    def __repr__(self) -> str:
        parts = [f"{name}={tensor.shape}" for name, tensor in self._members(Tensor)]
        options = [(name, vars(self)[name]) for name in signature(type(self)).parameters if name in vars(self)]
        parts += [f"{name}={option!r}" for name, option in options if _is_printed(option)]
        parts += [f"{name}={module!r}" for name, module in self._members(Module)]
        return f"{type(self).__name__}({', '.join(parts)})"

    def _members(self, kind: type[Any]) -> Iterator[tuple[str, Any]]:
        for name, value in vars(self).items():
            if name.startswith("_"):
                continue
            if isinstance(value, kind):
                yield name, value
            elif isinstance(value, list | tuple):
                yield from ((f"{name}.{i}", member) for i, member in enumerate(value) if isinstance(member, kind))

    def _walk(self, prefix: str) -> Iterator[tuple[str, Module]]:
        """This module and all modules in it, each with the prefix of its names."""
        yield prefix, self
        for name, module in self._members(Module):
            yield from module._walk(f"{prefix}{name}.")

    def _tensors(self, *, saved: bool = False) -> dict[str, Tensor]:
        """All tensors by name, or those that are part of a saved state."""
        return {
            prefix + name: x
            for prefix, module in self._walk("")
            for name, x in module._members(Tensor)
            if not (saved and name in module._not_saved)
        }

    def _with_extra_state(self) -> dict[str, Module]:
        found = {f"{prefix}_extra_state": module for prefix, module in self._walk("")}
        return {name: module for name, module in found.items() if module.get_extra_state() is not None}


def _once(named: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    seen = set()
    for name, one in named:
        if id(one) not in seen:
            seen.add(id(one))
            yield name, one


def _is_printed(option: object) -> bool:
    """Whether an argument of a constructor is told by `repr`: numbers, text, and pairs of numbers."""
    return isinstance(option, bool | int | float | str) or (
        isinstance(option, tuple) and all(isinstance(part, int) for part in option)
    )


def _check_fits(parameter: Tensor, given: object, name: str) -> None:
    if not isinstance(given, Tensor):
        raise TypeError(
            f"{name}: a state holds the scheduler's tensors, not {kind_of(given)}: `await s.put(a)` makes one"
        )
    if given.shape != parameter.shape or given.dtype != parameter.dtype:
        raise ValueError(
            f"{name}: the state has {given.shape} in {given.dtype}, the module {parameter.shape} in {parameter.dtype}"
        )
    if given.device is not parameter.device:
        raise ValueError(
            f"{name}: the state is on {given.device}, the module on {parameter.device}, perhaps of different"
            " schedulers: use `t.to(device)`, or `load(path, scheduler=...)`"
        )
