"""Tensors: handles on arrays to come, with the array API's operators; and `apply`, which issues every operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

import numpy as np

from .._core.audit import failure_above
from .._core.model import Lease, Task, Value
from .._core.ownership import enter
from .._instead import naming_arguments
from ..ops.index_keys import Key, encode_key
from ..ops.kernels.elementwise import power_op
from ..ops.op import NO_OPTIONS, Op, asked, plan
from ..ops.program import ref
from ..ops.table import TABLE
from ..runtime.context import find
from .arguments import NUMBERS, declined, scalar
from .handles import Donated, Handle, runtime_of
from .issue import issue, run_at_once, template_of
from .methods import Methods

Scalar = bool | int | float | complex | np.generic
_FIRST = ref(0)
_new = object.__new__
_OPERANDS = (Handle, np.ndarray, np.generic, *NUMBERS)


def listed(numbers: np.ndarray[Any, Any], beside: Tensor) -> Tensor:
    """A tensor of a few host numbers, on the device of another tensor."""
    flat, options = tuple(numbers.ravel().tolist()), {"shape": numbers.shape, "dtype": numbers.dtype}
    return apply(TABLE["listed"], flat, options, scheduler=runtime_of(beside._value), device=beside.device)


def apply(
    op: Op,
    operands: tuple[object, ...],
    options: Mapping[str, Any] = NO_OPTIONS,
    *,
    scheduler: Any = None,
    device: object = None,
    hold: bool = False,
    after: Sequence[Task] | None = None,
) -> Tensor:
    """Issue one operation of the table; every function and operator ends here.

    Args:
        op: the operation. Inside `asc.exact()` its exact variant is used, if it has one.
        operands: tensors and scalars.
        options: its keywords, hashable.
        scheduler: the scheduler to use if no operand is a tensor; default: the ambient one.
        device: the device to use if no operand is a tensor; default: the scheduler's first.
        hold: do not launch before the scheduler's next step.
        after: see `issue`.
    """
    if op.exact is not None and asked():
        op = op.exact
    plainly = len(operands) == 1 and not options and not hold and after is None
    if plainly and (result := _apply_to_one(op, operands[0])) is not None:
        return result
    kept: Any = None  # the operands' entries: see `Lease`
    args: list[Any] = []
    inputs: list[Value] = []
    forms: list[Any] = []
    nodes: list[Any] = []
    tracked = None
    for operand in operands:
        if isinstance(operand, Tensor):
            # Read once: a finaliser may assign to the tensor at any later step
            entry, value, node = operand._entry, operand._value, operand._node
            if entry is not None:
                kept = kept, entry
            nodes.append(node)
            args.append(value)
            inputs.append(value)
            forms.append(value.meta)
            if tracked is None:
                tracked = node
        else:
            number = scalar(operand)
            nodes.append(None)
            args.append(number)
            forms.append(number)
    first = inputs[0] if inputs else None
    runtime = find(scheduler) if first is None else first.account.runtime
    place = runtime.device(device) if first is None else first.device
    for value in inputs:
        if value.device is not place:
            _refuse_mixed(inputs[0], value)
    found = plan(op, tuple(forms), options)
    if first is None and op.view and not found.nbytes:
        raise TypeError(f"{op.name} takes a tensor, not a number: `asc.asarray(x)` makes one")
    made, lanes = None, None
    if op.resource and not place.inline and not place.remote:
        lanes = runtime.lane_of(op.resource, place)
    elif found.quick and place.inline and first is not None:
        arrays = [a.array if type(a) is Value else a for a in args]
        a, b = arrays if found.pair else (None, None)
        made = run_at_once(op, found, first, a, b, failure_above(inputs), arrays, options)
    if made is None:
        template = None if len(inputs) == len(args) else template_of(args)
        reads = first if first is not None and len(inputs) == 1 else tuple(inputs)
        made = issue(runtime, place, op, found, reads, template, options, lanes=lanes, hold=hold, after=after)
    result = Tensor(made)
    if tracked is not None:
        tracked.record(op, args, nodes, options, result)
    return result


def handle(operand: Any, node: Any) -> Any:
    """A new handle on the value of a lease, with its node if operations on it must be recorded; a number is returned as
    it is. It shares the lease's entry."""
    if not isinstance(operand, Lease):
        return operand
    tensor = _new(Tensor)
    tensor._value, tensor._entry, tensor._node = operand._value, operand._entry, node
    return tensor


def as_now(operand: Any) -> Any:
    """A new handle on a tensor's present value, which no finaliser can assign to; a number is returned as it is."""
    if not isinstance(operand, Tensor):
        return operand
    _entry, value, node = operand._entry, operand._value, operand._node  # no finaliser assigns in between
    return handle(Lease(value), node)


def record(op: Op, operands: Sequence[Any], options: Mapping[str, Any], result: Tensor) -> None:
    """Put a result on the tape if an operand is tracked. All tensors come from `as_now`, or nobody else holds them."""
    values = [o._value if isinstance(o, Tensor) else o for o in operands]
    nodes = [o._node if isinstance(o, Tensor) else None for o in operands]
    for node in nodes:
        if node is not None:
            node.record(op, values, nodes, options, result)
            return


def _apply_to_one(op: Op, x: object) -> Tensor | None:
    """Issue an operation of one operand by a known plan; None if there is none, or the stream is not free to choose."""
    if type(x) is not Tensor or x._node is not None:
        return None
    _entry, a = x._entry, x._value  # see `Lease`
    found = op.plans.get((a.meta,))
    if found is None or (op.resource and not a.device.inline):
        return None
    made = None
    if found.quick and a.device.inline:
        above = None if a.task is None else a.failure
        made = run_at_once(op, found, a, None, None, above, (a.array,))
    if made is None:
        made = issue(a.account.runtime, a.device, op, found, a, None, NO_OPTIONS, 4)  # above is a function
    result = _new(Tensor)  # without calling the class, which takes half as long again
    result._value = made
    result._entry = None if made.holders is None else enter(made.holders)
    result._node = None
    return result


def _refuse_mixed(a: Value, b: Value) -> None:
    if a.account.runtime is not b.account.runtime:
        raise ValueError("the operands belong to different schedulers: `await` one and `put` it into the other's")
    raise ValueError(f"the operands are on {a.device.name} and {b.device.name}: bring one over with `t.to(device)`")


_Operator: TypeAlias = "Callable[[Tensor, Tensor | Scalar], Tensor]"
_Unary: TypeAlias = "Callable[[Tensor], Tensor]"
UFUNC_OPERATORS: dict[str, str] = {}  # the operator's operation, by the name of NumPy's function


def _forward(name: str) -> _Operator:
    """The method for `t op other`. The hot path: with a known plan, a tiny operation runs at once."""
    op = TABLE[name]
    plans, exact, with_int, with_float = op.plans, op.exact, op.with_number[int], op.with_number[float]
    UFUNC_OPERATORS[op.kernel if isinstance(op.kernel, str) else name] = name
    template: tuple[Any, ...] = (None, None, None, ())  # of the last number: its plan, its device, and what they made

    def forward(self: Tensor, other: Any) -> Tensor:
        nonlocal template
        _entry, a, kind = self._entry, self._value, type(other)  # see `Lease`
        inline = a.device.inline
        above = None if a.task is None or not inline else a.failure
        if kind is int or kind is float:
            b, found = None, (with_int if kind is int else with_float).get(a.meta)
            second = other if found is None or found.numbers is None else found.numbers[other]
        elif kind is Tensor:
            _other, b, found = other._entry, other._value, None
            if a.device is b.device and other._node is None and (exact is None or not asked()):
                found = plans.get((a.meta, b.meta))
                second = b.array
                if inline and b.task is not None and above is None:
                    above = b.failure
        elif isinstance(other, _OPERANDS):
            return apply(op, (self, other))
        else:
            return cast(Tensor, declined(other))
        if found is None or self._node is not None:
            return apply(op, (self, other))
        made = run_at_once(op, found, a, a.array, second, above) if inline and found.quick else None
        if made is None and b is not None:
            made = issue(a.account.runtime, a.device, op, found, (a, b), None, NO_OPTIONS)
        elif made is None:
            kept = template  # read once: a scheduler on another thread may be here, too
            if kept[0] is not other or kept[1] is not found or kept[2] is not inline:
                # Arrays of other libraries take NumPy's scalars, and no arrays of NumPy's.
                number = second if inline or second is other else second[()]
                kept = template = other, found, inline, (_FIRST, number)
            made = issue(a.account.runtime, a.device, op, found, a, kept[3], NO_OPTIONS)
        result = _new(Tensor)
        result._value = made
        result._entry = None if made.holders is None else enter(made.holders)
        result._node = None
        return result

    forward.__name__, forward.__doc__ = f"__{name}__", op.doc
    return forward


def _backward(name: str) -> _Operator:
    """The method for `other op t`."""
    op = TABLE[name]

    def backward(self: Tensor, other: Any) -> Tensor:
        return apply(op, (other, self)) if isinstance(other, _OPERANDS) else cast(Tensor, declined(other))

    backward.__name__, backward.__doc__ = f"__r{name}__", op.doc
    return backward


def unary(op: Op) -> Callable[[Any], Tensor]:
    """The function of an operation of one operand. With a known plan it issues it by itself."""
    exact = op.exact

    def function(x: Any, /) -> Tensor:
        result = _apply_to_one(op, x) if exact is None else None
        return apply(op, (x,)) if result is None else result

    function.__doc__ = op.doc
    return function


class Tensor(Methods):
    """An array to come. `shape`, `dtype` and `nbytes` are known at once; `await t` gives the array.

    Operators issue tasks and return at once. On an event loop, anything that would have to wait for the value raises
    ImplicitBarrierError. A tensor is awaitable but no coroutine: `asyncio.create_task`, which starts coroutines,
    refuses it; `asyncio.ensure_future(t)` makes an asyncio task that waits for it.

    For floating-point errors NumPy's operators warn or raise, as `np.errstate` says. A tensor's operators go on with
    infinities and NaN. A function that is a task (`s.call(fn, x)`) uses the caller's `np.errstate`.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.arange(6.0).reshape(2, 3))
    ...         y = (x[1] - 1) ** 2
    ...         print(y.shape, y.dtype, y.nbytes)  # known, whether it is computed or not
    ...         return await y
    >>> asc.run(main)
    (3,) float64 24
    array([ 4.,  9., 16.])
    """

    __slots__ = ("_node",)

    def __init__(self, value: Value) -> None:
        if type(value) is not Value:
            if isinstance(value, Donated):
                value.refuse()
            raise TypeError("do not call Tensor: `x = await s.put(a)` makes a tensor from an array or a list")
        self._value = value
        self._entry = None if value.holders is None else enter(value.holders)
        self._node: Any = None

    def _op(self, name: str, *operands: object, **options: Any) -> Tensor:
        return apply(TABLE[name], (self, *operands), options)

    def __iter__(self) -> Iterator[Tensor]:
        return iter([self[i] for i in range(len(self))])

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        """The package, whose functions carry the names of the Python array API standard."""
        import asyncsched

        return asyncsched

    # -- other devices -----------------------------------------------------------------------------------------

    @naming_arguments
    def to(self, device: object) -> Tensor:
        """The tensor on another device of the same scheduler: the tensor itself if it is there, else a copy.

        >>> async def main():
        ...     async with asc.Scheduler(["cpu", "cpu"]) as s:
        ...         x = await s.put(np.ones(3))
        ...         y = x.to("cpu:1")
        ...         print(x.device, y.device, await y)
        >>> asc.run(main)
        cpu:0 cpu:1 [1. 1. 1.]
        """
        _entry, value, node = self._entry, self._value, self._node  # read once, as in `apply`
        runtime = runtime_of(value)
        runtime.check()
        target = runtime.device(device)
        if target is value.device:
            return self
        op = TABLE["copy"]
        found = plan(op, (value.meta,), NO_OPTIONS)
        lanes = runtime.lanes[target].copy
        result = Tensor(issue(runtime, target, op, found, value, None, NO_OPTIONS, lanes=lanes))
        if node is not None:
            node.record(op, (value,), (node,), NO_OPTIONS, result)
        return result

    def to_device(self, device: object, /, *, stream: None = None) -> Tensor:
        """The same as `to`, by the standard's name. The scheduler orders the streams, so `stream` must be None."""
        if stream is not None:
            raise ValueError("to_device: the scheduler chooses the stream: leave `stream` out")
        return self.to(device)

    # -- NumPy's operands ---------------------------------------------------------------------------------------

    if not TYPE_CHECKING:  # type checkers reject `np.exp(t)`, which raises on an event loop

        def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
            name = UFUNC_OPERATORS.get(ufunc.__name__)
            if method == "__call__" and name and not kwargs and isinstance(inputs[0], np.generic | np.ndarray):
                # NumPy's arrays and scalars bring their operators here: `np.float32(2) * t`.
                # Some of NumPy's scalars come as arrays without axes; `[()]` makes them scalars again.
                return apply(TABLE[name], (inputs[0][()], inputs[1]))
            return self._through_numpy(ufunc.__name__, getattr(ufunc, method), inputs, kwargs)

    # -- indexing -----------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Tensor:
        encoded, tensors = self._encoded(key)
        op = TABLE["getitem_advanced" if tensors else "getitem"]
        return apply(op, (self, *tensors), {"key": encoded})

    def __setitem__(self, key: Any, new: Any) -> None:
        """Move this handle to a new version with the part assigned. Tasks already issued keep the old version."""
        encoded, tensors = self._encoded(key)
        if self._node is not None:
            self._node.check_assignment()
        while True:
            old = self._value
            result = apply(TABLE["setitem"], (self, new, *tensors), {"key": encoded}, hold=True)
            stays_leaf = self._node is not None and self._node.leaf
            if self._move(result, old):
                break  # otherwise a finaliser has assigned to another part meanwhile, which must not be lost
        if not stays_leaf:
            self._node = result._node
        # The task is held back until the old version is dropped. Then it is written in place, if nobody else holds it.
        # The old version is dropped last, since that may run a finaliser that assigns.
        del old
        runtime_of(self._value).dispatch()

    def _encoded(self, key: Any) -> tuple[Key, tuple[Tensor, ...]]:
        """The key in hashable form, and its index tensors. A list becomes an index tensor."""
        parts = key if isinstance(key, tuple) else (key,)
        if list in map(type, parts):
            key = tuple([self._listed(part) if type(part) is list else part for part in parts])
        return encode_key(key, Tensor)

    def _listed(self, part: list[Any]) -> Tensor:
        numbers = np.array(part, np.intp if part == [] else None)
        if numbers.dtype.kind not in "biu":
            raise IndexError(f"a list of {numbers.dtype} is no index: use integers, or one bool for each place")
        return listed(numbers, self)

    def detach(self) -> Tensor:
        """The same array under a handle that is not recorded."""
        return Tensor(self._value)

    # -- operators ----------------------------------------------------------------------------------------------

    __add__: ClassVar[_Operator] = _forward("add")
    __radd__: ClassVar[_Operator] = _backward("add")
    __sub__: ClassVar[_Operator] = _forward("subtract")
    __rsub__: ClassVar[_Operator] = _backward("subtract")
    __mul__: ClassVar[_Operator] = _forward("multiply")
    __rmul__: ClassVar[_Operator] = _backward("multiply")
    __truediv__: ClassVar[_Operator] = _forward("divide")
    __rtruediv__: ClassVar[_Operator] = _backward("divide")
    __floordiv__: ClassVar[_Operator] = _forward("floor_divide")
    __rfloordiv__: ClassVar[_Operator] = _backward("floor_divide")
    __mod__: ClassVar[_Operator] = _forward("remainder")
    __rmod__: ClassVar[_Operator] = _backward("remainder")
    __matmul__: ClassVar[_Operator] = _forward("matmul")
    __rmatmul__: ClassVar[_Operator] = _backward("matmul")
    __and__: ClassVar[_Operator] = _forward("bitwise_and")
    __rand__: ClassVar[_Operator] = _backward("bitwise_and")
    __or__: ClassVar[_Operator] = _forward("bitwise_or")
    __ror__: ClassVar[_Operator] = _backward("bitwise_or")
    __xor__: ClassVar[_Operator] = _forward("bitwise_xor")
    __rxor__: ClassVar[_Operator] = _backward("bitwise_xor")
    __lshift__: ClassVar[_Operator] = _forward("bitwise_left_shift")
    __rlshift__: ClassVar[_Operator] = _backward("bitwise_left_shift")
    __rshift__: ClassVar[_Operator] = _forward("bitwise_right_shift")
    __rrshift__: ClassVar[_Operator] = _backward("bitwise_right_shift")
    __lt__: ClassVar[_Operator] = _forward("less")
    __le__: ClassVar[_Operator] = _forward("less_equal")
    __gt__: ClassVar[_Operator] = _forward("greater")
    __ge__: ClassVar[_Operator] = _forward("greater_equal")
    __eq__: ClassVar[_Operator] = _forward("equal")  # type: ignore[assignment]
    __ne__: ClassVar[_Operator] = _forward("not_equal")  # type: ignore[assignment]
    __hash__: ClassVar[Callable[[Tensor], int]] = Handle.__hash__
    __neg__: ClassVar[_Unary] = unary(TABLE["negative"])
    __pos__: ClassVar[_Unary] = unary(TABLE["positive"])
    __abs__: ClassVar[_Unary] = unary(TABLE["abs"])
    __invert__: ClassVar[_Unary] = unary(TABLE["bitwise_invert"])
    _pow = _forward("pow")
    __rpow__: ClassVar[_Operator] = _backward("pow")

    def __pow__(self, other: Any) -> Tensor:
        """x**y. Some constant exponents have an operation of their own: squares, roots, the reciprocal."""
        op = power_op(self._value.meta, other._value.meta if isinstance(other, Tensor) else other)
        return self._pow(other) if op.name == "pow" else apply(op, (self,))
