"""The tape: how each result was computed, and whether operations are recorded.

Nodes hold nodes and values, never handles, so there are no cycles.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Any, Final, NamedTuple, TypeVar

from .._blocks import Mark, decorated, holds
from .._core.model import Lease, Value
from ..devices.contract import Device
from ..devices.memory import form_of
from ..ops.meta import Meta
from ..ops.op import Op
from ..tensors import functions
from ..tensors.tensor import Tensor, handle
from .rules import COMPLEX, COMPOSED, HOLOMORPHIC, RULES, Partial
from .rules.common import in_shape, summed

F = TypeVar("F", bound=Callable[..., Any])

_NAMES: Final = "xyz"  # of the first operands, in rules
_silent: ContextVar[tuple[Mark, ...]] = ContextVar("asyncsched.no_grad", default=())


class no_grad:
    """Record nothing: `with no_grad():`, or `@no_grad()` above a function or a coroutine function.

    It holds only for this context: for the coroutine that uses it, and for tasks created inside. For a generator
    function the decorator raises TypeError, since a generator's body runs after the call.

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
        self._marks: list[Mark] = []

    def __enter__(self) -> None:
        mark = Mark(_silent)
        self._marks.append(mark)
        mark.enter()

    def __exit__(self, *error: object) -> None:
        self._marks.pop().leave()

    def __call__(self, function: F) -> F:
        return decorated(function, no_grad)


class Call(NamedTuple):
    """The facts about an operation that a rule may use without keeping an array."""

    options: Mapping[str, Any]
    metas: tuple[Any, ...]  # for each operand its shape and dtype, or the number
    place: int  # of the operand whose gradient is wanted
    device: Device  # of that operand
    unknown: Tensor | None  # that operand, if a length of it is not known yet


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """A tensor's place on the tape. Tensors call its methods directly, since the tape is a room above them.

    A leaf has no operation: gradients arrive there, at a tensor with `requires_grad` set. Any other node belongs to an
    operation's result: it knows where the gradient goes, and keeps what the derivative reads.
    """

    device: Device
    op: Op | None = None
    partials: Sequence[Any] = ()  # the derivative for each operand; None if no gradient goes there
    options: Any = None
    operands: tuple[Any, ...] = ()  # leases if a derivative reads them or a length is unknown, else metas, or numbers
    out: Lease | None = None  # of the result, if a derivative reads it
    parents: tuple[Any, ...] = ()  # the operands' nodes, None if no gradient goes there; empty once dropped
    grad: Tensor | None = None
    number: int = field(default_factory=count().__next__)  # larger than those of the operands

    @property
    def leaf(self) -> bool:
        """Whether gradients arrive here."""
        return self.op is None

    @property
    def leads_back(self) -> bool:
        """Whether an operation on its tensor would be recorded now, and a gradient could go back from there."""
        return not ((marks := _silent.get()) and holds(marks)) and (self.leaf or bool(self.parents))

    @staticmethod
    def record(
        operation: Op, operands: Sequence[Any], nodes: Sequence[Any], options: Mapping[str, Any], result: Tensor
    ) -> None:
        """Put the result of an operation with tracked operands on the tape.

        Args:
            operands: values and numbers, as they were read: a finaliser may have assigned to the tensors since.
            nodes: the nodes of the operands, read with them; None for untracked ones.

        Raises:
            NotImplementedError: if the operation has no rule, or none for complex numbers.
        """
        kind = result._value.meta.dtype.kind
        if kind not in "fc" or ((marks := _silent.get()) and holds(marks)):
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
            kept = tuple([_residual(place, operand, needs) for place, operand in enumerate(operands)])
            out = Lease(value) if "out" in needs else None
            result._node = Node(value.device, operation, partials, options, kept, out, tuple(parents))

    def pull(self, place: int, gradient: Tensor, tracked: bool) -> Tensor:
        """The gradient of an operand, from that of the result. If `tracked`, it is recorded itself."""
        partial = self.partials[place]
        if tracked and self.op is not None and self.op.name in COMPOSED:
            rule = COMPOSED[self.op.name]
            partial = rule[min(place, len(rule) - 1)]
        gradient = self._conjugated(gradient)
        given = {name: self._argument(name, place, gradient, tracked) for name in _needs((partial,))}
        try:
            found = partial(**given)
        except TypeError as error:
            if all(_meta(operand).known for operand in self.operands if type(operand) in (Lease, Meta)):
                raise
            name = self.op and self.op.name
            raise ValueError(
                f"{name}: the gradient needs lengths that depend on data: `await` the operands first"
            ) from error
        return fit(self._conjugated(found), _meta(self.operands[place]))

    def _conjugated(self, x: Tensor) -> Tensor:
        """Conjugate a complex tensor before and after a rule for real numbers; return any other as it is."""
        holomorphic = x.dtype.kind == "c" and self.op is not None and self.op.name in HOLOMORPHIC
        return functions.conj(x) if holomorphic else x

    def _argument(self, name: str, place: int, gradient: Tensor, tracked: bool) -> Any:
        if name == "g":
            return gradient
        if name == "call":
            metas, own = tuple(map(_meta, self.operands)), self.operands[place]
            unknown = handle(own, None) if type(own) is Lease and not metas[place].known else None
            return Call(self.options, metas, place, self.parents[place].device, unknown)
        if name == "indices":
            leases = [operand for operand in self.operands if type(operand) is Lease]
            return tuple([handle(lease, None) for lease in leases if lease._value.meta.dtype.kind in "biu"])
        if name == "out":
            return handle(self.out, self if tracked else None)
        if name == "operands":
            return tuple([handle(a, n if tracked else None) for a, n in zip(self.operands, self.parents, strict=True)])
        at = _NAMES.index(name)
        return handle(self.operands[at], self.parents[at] if tracked else None)

    def drop(self) -> None:
        """Drop everything that is kept for the backward pass."""
        self.parents = self.operands = ()
        self.out = None

    def check_assignment(self) -> None:
        """Raise for an assignment to a part of a leaf: its gradient would be that of the old version."""
        if self.leaf and not holds(_silent.get()):
            raise RuntimeError(
                "cannot assign to a part of a tensor with requires_grad: assign `with no_grad():`, or to a copy"
            )


def _rule(name: str, has_complex: bool) -> tuple[Partial | None, ...]:
    """The derivatives of an operation, one for each operand. Raises if there are none."""
    if name in RULES and (not has_complex or name in HOLOMORPHIC):
        return RULES[name]
    if has_complex and name in COMPLEX:
        return COMPLEX[name]
    cure = "use `t.detach()` or `with no_grad():` to leave it out"
    if has_complex:
        raise NotImplementedError(f"{name}: no derivative is known for complex numbers: {cure}")
    raise NotImplementedError(f"{name}: no derivative is known: {cure}, or add one to autograd.RULES")


def fit(gradient: Tensor, meta: Meta) -> Tensor:
    """A gradient in the shape and dtype of its tensor: summed over broadcast axes, and cast."""
    if gradient.dtype.kind == "c" and meta.dtype.kind != "c":
        gradient = functions.real(gradient)
    shape, wanted = gradient.shape, meta.shape
    if shape != wanted:
        extra = len(shape) - len(wanted)
        axes = [i for i, n in enumerate(shape) if i < extra or (wanted[i - extra] == 1 and n != 1)]
        if axes:
            gradient = summed(gradient, axes)
        gradient = in_shape(gradient, wanted)
    return gradient if gradient.dtype == meta.dtype else gradient.astype(meta.dtype)


def track(tensor: Tensor, wanted: bool) -> None:
    """Carry out `tensor.requires_grad = wanted`."""
    node = tensor._node
    if wanted and node is None:
        if tensor.dtype.kind != "f":
            raise TypeError(f"only real floating-point tensors have gradients, not {tensor.dtype}: use `t.astype(...)`")
        tensor._node = Node(tensor.device)
    elif not wanted and node is not None:
        if not node.leaf:
            raise RuntimeError("this tensor was computed from tracked ones: `t.detach()` gives an untracked one")
        tensor._node = None


def set_grad(tensor: Tensor, gradient: Tensor | None) -> None:
    """Carry out `tensor.grad = gradient`."""
    node = tensor._node
    if node is None or not node.leaf:
        raise RuntimeError(
            "only a tensor with requires_grad set has a gradient: set `t.requires_grad = True` first. `t -= ...` makes"
            " a new tensor, without it: to change `t`, write `with asc.no_grad(): t[...] = t - ...`"
        )
    if gradient is not None:
        check_like(gradient, tensor._value.meta)
        gradient = gradient.detach()
    node.grad = gradient


def check_like(gradient: object, meta: Meta) -> None:
    """Raise unless a gradient has the shape and dtype of its tensor."""
    if not isinstance(gradient, Tensor):
        raise TypeError(f"a gradient is a Tensor or None, not {type(gradient).__name__}")
    if gradient.shape != meta.shape or gradient.dtype != meta.dtype:
        raise ValueError(
            f"the gradient must be like its tensor, {meta.shape} in {meta.dtype},"
            f" not {gradient.shape} in {gradient.dtype}"
        )


@lru_cache(4096)
def _needs(partials: tuple[Partial | None, ...]) -> frozenset[str]:
    """The needs of derivatives: the names of their parameters."""
    return frozenset(name for partial in partials if partial for name in inspect.signature(partial).parameters)


def _residual(place: int, operand: Any, needs: frozenset[str]) -> Any:
    """A lease of the operand if a derivative reads it or its shape is not known yet; else its meta; a number itself."""
    if type(operand) is not Value:
        return operand
    read = _NAMES[place : place + 1] in needs or ("indices" in needs and operand.meta.dtype.kind in "biu")
    read = read or "operands" in needs or not operand.meta.known
    return Lease(operand) if read else operand.meta


def _meta(operand: Any) -> Any:
    """The operand's meta, with all lengths if it is there; a number as it is."""
    if type(operand) is not Lease:
        return operand
    value = operand._value
    return form_of(value) if not value.meta.known and value.settled and value.failure is None else value.meta
