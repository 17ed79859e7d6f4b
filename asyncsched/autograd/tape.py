"""The tape: what was computed from what. Nodes hold nodes and values, never handles, so there are no cycles."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from itertools import count
from typing import Any, Final, NamedTuple

from .._core.task import Value
from ..devices.contract import Device
from ..ops.meta import Meta
from ..ops.row import Row
from ..tensor import Tensor
from .mode import recording
from .rules import RULES, Partial

_next_number = count().__next__
_PLACES: Final = {"x": 0, "y": 1, "z": 2}


class Call(NamedTuple):
    """What a rule may know of an operation without keeping an array."""

    options: Mapping[str, Any]
    metas: tuple[Any, ...]  # of each operand its shape and dtype, or the number it is
    place: int  # of the operand whose gradient is wanted
    device: Device  # of that operand


class Tracked:
    """A tensor's place on the tape. Tensors reach it through this: the tape is a floor above them."""

    __slots__ = ("number",)

    leaf = False

    def __init__(self) -> None:
        self.number = _next_number()  # larger than those of its operands

    @staticmethod
    def record(row: Row, operands: tuple[Any, ...], options: Mapping[str, Any], result: Tensor) -> None:
        """Put the result of an operation with tracked operands on the tape."""
        record(row, operands, options, result)

    def check_assignment(self) -> None:
        """Refuse to assign to a part of a leaf, whose gradient would be that of what it was."""
        if self.leaf and recording.get():
            raise RuntimeError(
                "a part of a tensor with requires_grad cannot be assigned to: do it `with no_grad():`, or to a copy"
            )


class Leaf(Tracked):
    """Where a gradient arrives: the node of a tensor with `requires_grad` set."""

    __slots__ = ("grad",)

    leaf = True
    parents: Final[tuple[Node | Leaf | None, ...]] = ()

    def __init__(self) -> None:
        super().__init__()
        self.grad: Tensor | None = None


class Node(Tracked):
    """The result of an operation: where its gradient goes, and what is kept for it.

    `operands` are values where a derivative reads them, else metas, or numbers; `out` is the result's value if one
    reads that. `parents` are the operands' nodes, None where no gradient goes; None altogether once all is dropped.
    """

    __slots__ = ("device", "operands", "options", "out", "parents", "row")

    grad: Final = None
    parents: tuple[Node | Leaf | None, ...]

    def __init__(
        self,
        row: Row,
        operands: tuple[Any, ...],
        options: Mapping[str, Any],
        result: Value,
        parents: tuple[Node | Leaf | None, ...],
        device: Device,
        needs: frozenset[str],
    ) -> None:
        super().__init__()
        self.row = row
        self.operands = operands
        self.options = options
        self.device = device
        self.out = result if "out" in needs else None
        self.parents = parents

    def drop(self) -> None:
        """Let go of everything that was kept."""
        self.parents = self.operands = ()
        self.out = None

    @property
    def dropped(self) -> bool:
        """Whether a backward pass went through here, and kept nothing."""
        return not self.parents

    def pull(self, place: int, gradient: Tensor, tracked: bool) -> Tensor:
        """The gradient of an operand, from that of the result. If `tracked` it is recorded itself."""
        function = partial(self.row, place)
        assert function is not None
        given = {name: self._argument(name, place, gradient, tracked) for name in needs_of(function)}
        return fit(function(**given), _meta_of(self.operands[place]))

    def _argument(self, name: str, place: int, gradient: Tensor, tracked: bool) -> Any:
        if name == "g":
            return gradient
        if name == "call":
            return Call(self.options, tuple([_meta_of(a) for a in self.operands]), place, self.device)
        if name == "out":
            assert self.out is not None
            return _handle(self.out, self if tracked else None)
        if name == "indices":
            return tuple([Tensor(a) for a in self.operands if type(a) is Value and a.meta.dtype.kind in "biu"])
        at = _PLACES[name]
        return _handle(self.operands[at], self.parents[at] if tracked else None)


def record(row: Row, operands: tuple[Any, ...], options: Mapping[str, Any], result: Tensor) -> None:
    """Put the result of an operation with tracked operands on the tape.

    Raises:
        NotImplementedError: if there is no rule for it, or its result is complex.
    """
    kind = result._value.meta.dtype.kind
    if kind not in "fc" or not recording.get():
        return
    if kind == "c" or row.name not in RULES:
        why = "gradients of complex numbers are not known" if kind == "c" else "no derivative is known"
        raise NotImplementedError(
            f"{row.name}: {why}: use `t.detach()` or `with no_grad():` to leave it out, or add one to autograd.RULES"
        )
    parents = []
    needs: frozenset[str] = frozenset()
    for place, operand in enumerate(operands):
        node = operand._node if isinstance(operand, Tensor) else None
        function = None if node is None else partial(row, place)
        if function is not None:
            needs |= needs_of(function)
            device = operand.device
        parents.append(None if function is None else node)
    if any(parents):
        kept = tuple([_kept(place, operand, needs) for place, operand in enumerate(operands)])
        result._node = Node(row, kept, options, result._value, tuple(parents), device, needs)


def partial(row: Row, place: int) -> Partial | None:
    """The derivative with respect to one operand."""
    rule = RULES[row.name]
    return rule[min(place, len(rule) - 1)]


@cache
def needs_of(function: Partial) -> frozenset[str]:
    """What a derivative needs: the names of its parameters."""
    return frozenset(inspect.signature(function).parameters)


def fit(gradient: Tensor, meta: Meta) -> Tensor:
    """A gradient in the shape and dtype of what it is the gradient of: summed over what was broadcast."""
    shape, wanted = gradient.shape, meta.shape
    if shape != wanted:
        extra = len(shape) - len(wanted)
        axes = [i for i, n in enumerate(shape) if i < extra or (wanted[i - extra] == 1 and n != 1)]
        if axes:
            gradient = gradient.sum(axis=tuple(axes))
        if gradient.shape != wanted:
            gradient = gradient.reshape(wanted)
    return gradient if gradient.dtype == meta.dtype else gradient.astype(meta.dtype)


def track(tensor: Tensor, wanted: bool) -> None:
    """What `tensor.requires_grad = wanted` does."""
    node = tensor._node
    if wanted and node is None:
        if tensor.dtype.kind != "f":
            raise TypeError(f"only real floating-point tensors have gradients, not {tensor.dtype}: use `t.astype(...)`")
        tensor._node = Leaf()
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
        if not isinstance(gradient, Tensor):
            raise TypeError(f"a gradient is a Tensor or None, not {type(gradient).__name__}")
        check_like(gradient, tensor._value.meta)
        gradient = gradient.detach()
    node.grad = gradient


def check_like(gradient: Tensor, meta: Meta) -> None:
    """Raise unless a gradient has the shape and dtype of what it is the gradient of."""
    if gradient.shape != meta.shape or gradient.dtype != meta.dtype:
        raise ValueError(
            f"the gradient must be like its tensor, {meta.shape} in {meta.dtype},"
            f" not {gradient.shape} in {gradient.dtype}"
        )


def _kept(place: int, operand: Any, needs: frozenset[str]) -> Any:
    """The operand's value if it is needed, else its meta; a number as it is."""
    if not isinstance(operand, Tensor):
        return operand
    value = operand._value
    wanted = ("indices" in needs and value.meta.dtype.kind in "biu") or any(
        place == _PLACES.get(name) for name in needs
    )
    return value if wanted else value.meta


def _meta_of(operand: Any) -> Any:
    return operand.meta if type(operand) is Value else operand


def _handle(operand: Any, node: Node | Leaf | None) -> Any:
    """An operand as a tensor again, with its node if what is done with it is to be recorded."""
    if type(operand) is not Value:
        return operand
    tensor = Tensor(operand)
    tensor._node = node
    return tensor
