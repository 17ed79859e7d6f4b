"""The tape: what was computed from what, and whether that is recorded. Nodes hold nodes and values, never handles, so
there are no cycles.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from itertools import count
from typing import Any, Final, NamedTuple, TypeVar

from .._arguments import is_coroutine_function
from .._core.model import Value
from ..devices.contract import Device
from ..ops.meta import Meta
from ..ops.op import Op
from ..runtime.deadlock import CHAINED
from ..tensors import functions
from ..tensors.tensor import Tensor, handle
from .rules import COMPLEX, COMPOSED, HOLOMORPHIC, RULES, Partial
from .rules.common import in_shape, wide

F = TypeVar("F", bound=Callable[..., Any])

_NAMES: Final = "xyz"  # of the first operands, as rules have them
_recording: ContextVar[bool] = ContextVar("asyncsched.recording", default=True)


class no_grad:
    """Record nothing: `with no_grad():`, or `@no_grad()` above a function or a coroutine function.

    It holds for this context alone: for the coroutine it is used in, and for tasks that one creates inside. Above a
    generator function it raises TypeError, since a generator's body runs after the call.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.ones(3))
    ...         x.requires_grad = True
    ...         with asc.no_grad():
    ...             y = x * 2
    ...         return y.requires_grad, (x * 2).requires_grad
    >>> asc.run(main)
    (False, True)
    """

    def __init__(self) -> None:
        self._tokens: list[Token[bool]] = []

    def __enter__(self) -> None:
        self._tokens.append(_recording.set(False))

    def __exit__(self, *error: object) -> None:
        _recording.reset(self._tokens.pop())

    def __call__(self, function: F) -> F:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("the body of a generator runs after the call: use `with no_grad():` in it")

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with no_grad():
                return await function(*args, **kwargs)

        def called(*args: Any, **kwargs: Any) -> Any:
            with no_grad():
                return function(*args, **kwargs)

        wrapped = awaited if is_coroutine_function(function) else called
        return wraps(function)(wrapped)  # type: ignore[return-value]


class Call(NamedTuple):
    """What a rule may know of an operation without keeping an array."""

    options: Mapping[str, Any]
    metas: tuple[Any, ...]  # of each operand its shape and dtype, or the number it is
    place: int  # of the operand whose gradient is wanted
    device: Device  # of that operand


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """A tensor's place on the tape. Tensors reach it through this: the tape is a room above them.

    A leaf has no operation: a gradient arrives there, at a tensor with `requires_grad` set. Any other node is of an
    operation's result: it knows where the gradient goes, and keeps what the derivative needs.
    """

    device: Device
    op: Op | None = None
    partials: Sequence[Any] = ()  # the derivative for each operand, None where no gradient goes
    options: Any = None
    operands: tuple[Any, ...] = ()  # values where a derivative reads them, or a length is to come; metas; numbers
    out: Value | None = None  # the result, if a derivative reads that
    parents: tuple[Any, ...] = ()  # the operands' nodes, None where no gradient goes; empty once all is dropped
    grad: Tensor | None = None
    number: int = field(default_factory=count().__next__)  # larger than those of its operands

    @property
    def leaf(self) -> bool:
        """Whether a gradient arrives here."""
        return self.op is None

    @property
    def leads_back(self) -> bool:
        """Whether what is done with its tensor now would be recorded, and a gradient could go back from there."""
        return _recording.get() and (self.leaf or bool(self.parents))

    @staticmethod
    def record(
        operation: Op, operands: Sequence[Any], nodes: Sequence[Any], options: Mapping[str, Any], result: Tensor
    ) -> None:
        """Put the result of an operation with tracked operands on the tape.

        Args:
            operands: values and numbers, as they were read: a finaliser may have assigned to the tensors since.
            nodes: the tensors' places on the tape, read with them; None for the others.

        Raises:
            NotImplementedError: if there is no rule for it, or none for complex numbers.
        """
        kind = result._value.meta.dtype.kind
        if kind not in "fc" or not _recording.get():
            return
        rule, value = _rule(operation.name, kind == "c"), result._value
        parents: list[Node | None] = []
        partials: list[Partial | None] = []
        for place, (operand, node) in enumerate(zip(operands, nodes, strict=True)):
            partial = None
            if node is not None:
                if kind == "f" and operand.meta.dtype.kind == "c":
                    rule = _rule(operation.name, True)
                partial = rule[min(place, len(rule) - 1)]
            partials.append(partial)
            parents.append(None if partial is None else node)
        if any(parents):
            needs = _needs(tuple(partials))
            kept = tuple([_kept(place, operand, needs) for place, operand in enumerate(operands)])
            out = value if "out" in needs else None
            result._node = Node(value.device, operation, partials, options, kept, out, tuple(parents))

    def pull(self, place: int, gradient: Tensor, tracked: bool) -> Tensor:
        """The gradient of an operand, from that of the result. If `tracked` it is recorded itself."""
        partial = self.partials[place]
        if tracked and self.op is not None and self.op.name in COMPOSED:
            rule = COMPOSED[self.op.name]
            partial = rule[min(place, len(rule) - 1)]
        gradient = self._turned(gradient)
        given = {name: self._argument(name, place, gradient, tracked) for name in _needs((partial,))}
        return fit(self._turned(partial(**given)), _meta(self.operands[place]))

    def _turned(self, x: Tensor) -> Tensor:
        """Conjugates what goes into a rule for real numbers, and what comes out, where the numbers are complex."""
        holomorphic = x.dtype.kind == "c" and self.op is not None and self.op.name in HOLOMORPHIC
        return functions.conj(x) if holomorphic else x

    def _argument(self, name: str, place: int, gradient: Tensor, tracked: bool) -> Any:
        if name == "g":
            return gradient
        if name == "call":
            return Call(self.options, tuple(map(_meta, self.operands)), place, self.parents[place].device)
        if name == "indices":
            return tuple([Tensor(a) for a in self.operands if type(a) is Value and a.meta.dtype.kind in "biu"])
        if name == "out":
            return handle(self.out, self if tracked else None)
        if name == "operands":
            return tuple([handle(a, n if tracked else None) for a, n in zip(self.operands, self.parents, strict=True)])
        at = _NAMES.index(name)
        return handle(self.operands[at], self.parents[at] if tracked else None)

    def drop(self) -> None:
        """Drop everything that was kept for the backward pass."""
        self.parents = self.operands = ()
        self.out = None

    def check_assignment(self) -> None:
        """Refuse to assign to a part of a leaf, whose gradient would be that of what it was."""
        if self.leaf and _recording.get():
            raise RuntimeError(
                "a part of a tensor with requires_grad cannot be assigned to: do it `with no_grad():`, or to a copy"
            )


CHAINED.add(Node)


def _rule(name: str, has_complex: bool) -> tuple[Partial | None, ...]:
    """The derivatives of an operation with complex numbers, one for each operand; or why there are none."""
    if name in RULES and (not has_complex or name in HOLOMORPHIC):
        return RULES[name]
    if has_complex and name in COMPLEX:
        return COMPLEX[name]
    cure = "use `t.detach()` or `with no_grad():` to leave it out"
    if has_complex:
        raise NotImplementedError(f"{name}: no derivative is known for complex numbers: {cure}")
    raise NotImplementedError(f"{name}: no derivative is known: {cure}, or add one to autograd.RULES")


def fit(gradient: Tensor, meta: Meta) -> Tensor:
    """A gradient in the shape and dtype of what it is the gradient of: summed over what was broadcast."""
    if gradient.dtype.kind == "c" and meta.dtype.kind != "c":
        gradient = functions.real(gradient)
    shape, wanted = gradient.shape, meta.shape
    if shape != wanted:
        extra = len(shape) - len(wanted)
        axes = [i for i, n in enumerate(shape) if i < extra or (wanted[i - extra] == 1 and n != 1)]
        if axes:
            gradient = wide(gradient).sum(axis=tuple(axes))
        gradient = in_shape(gradient, wanted)
    return gradient if gradient.dtype == meta.dtype else gradient.astype(meta.dtype)


def track(tensor: Tensor, wanted: bool) -> None:
    """What `tensor.requires_grad = wanted` does."""
    node = tensor._node
    if wanted and node is None:
        if tensor.dtype.kind != "f":
            raise TypeError(f"only real floating-point tensors have gradients, not {tensor.dtype}: use `t.astype(...)`")
        tensor._node = Node(tensor.device)
    elif not wanted and node is not None:
        if not node.leaf:
            raise RuntimeError("this tensor was computed from tracked ones: `t.detach()` gives one that is not")
        tensor._node = None


def set_grad(tensor: Tensor, gradient: Tensor | None) -> None:
    """What `tensor.grad = gradient` does."""
    node = tensor._node
    if node is None or not node.leaf:
        raise RuntimeError("only a tensor whose requires_grad was set has a place for a gradient")
    if gradient is not None:
        check_like(gradient, tensor._value.meta)
        gradient = gradient.detach()
    node.grad = gradient


def check_like(gradient: object, meta: Meta) -> None:
    """Raise unless a gradient has the shape and dtype of what it is the gradient of."""
    if not isinstance(gradient, Tensor):
        raise TypeError(f"a gradient is a Tensor or None, not {type(gradient).__name__}")
    if gradient.shape != meta.shape or gradient.dtype != meta.dtype:
        raise ValueError(
            f"the gradient must be like its tensor, {meta.shape} in {meta.dtype},"
            f" not {gradient.shape} in {gradient.dtype}"
        )


@lru_cache(4096)
def _needs(partials: tuple[Partial | None, ...]) -> frozenset[str]:
    """What derivatives need, told by the names of their parameters."""
    return frozenset(name for partial in partials if partial for name in inspect.signature(partial).parameters)


def _kept(place: int, operand: Any, needs: frozenset[str]) -> Any:
    """The operand's value if a derivative reads it, or a length is known by then; else its meta. A number as it is."""
    if type(operand) is not Value:
        return operand
    read = _NAMES[place : place + 1] in needs or ("indices" in needs and operand.meta.dtype.kind in "biu")
    read = read or "operands" in needs or not operand.meta.known
    return operand if read else operand.meta


def _meta(operand: Any) -> Any:
    return operand.meta if type(operand) is Value else operand
