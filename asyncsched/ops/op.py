"""The classes of the table of operations: an `Op` for each operation, and the `Plan` it makes for given operands.

The traits that an operation may state beside its kernel and its rule, see the fields of `Op`, come first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from functools import partial, reduce
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np

from .._blocks import Mark, contextmanager, holds
from .cost_model import inline_seconds, stream_seconds
from .meta import Meta, meta
from .parallel import seconds_of
from .quiet import quietly

Operand = Meta | bool | int | float | complex | np.generic
Options = Mapping[str, Any]
NO_OPTIONS: Options = {}
Kernel = Callable[..., Any]

_PLAN_LIMIT = 4096
CARD_GRANULE = 512  # bytes: a CUDA card's memory comes in multiples of this, as CuPy's does
_CARD = 25  # threads of a processor add up arrays as fast as an H200; for products it would take 500
_NUMBERS = 64  # per plan
_LARGE = (720_720, 720_721)  # lengths: the first is a multiple of all numbers up to 16
# The Python types that NumPy promotes weakly. (bool is not weak, but has a type of its own, too.)
_PYTHON_SCALARS = frozenset((bool, int, float, complex))


class Cut(Enum):
    """Where an operation may be cut into parts for several threads. Each part is the operation, applied to slices."""

    WHOLE = "nowhere"
    BY_ELEMENTS = "anywhere: an element of the result depends only on the elements at its own place"
    BY_ROWS = "between rows of the last axis"
    BY_WEIGHT_ROWS = "between rows; a row is as many last axes as the second operand, a weight, has"
    # Products, named as in BLAS: N is for an operand as it is, T for a transposed one.
    PRODUCT_NN = "x1 x2: along rows of x1 and columns of x2"
    PRODUCT_NT = "x1 x2^T and perhaps a bias: along rows of x1 and rows of x2"
    PRODUCT_TN = "x1^T x2: along columns of both"


PRODUCTS = (Cut.PRODUCT_NN, Cut.PRODUCT_NT, Cut.PRODUCT_TN)


class Blas(Enum):
    """Whether an operation uses BLAS. If so, the number of BLAS threads is set before the operation is launched."""

    NONE = "no product inside"
    INSIDE = "small products among other work, none of which is worth several threads"
    PRODUCT = "the operation is a product"


class Bound(NamedTuple):
    """How far results may be off: `relative` times the exact result, and `absolute` times the largest operand, or 1."""

    relative: float
    absolute: float


class UfuncCall(NamedTuple):
    """A universal function with the operation's bits, if it is given the operands and then these arguments."""

    ufunc: str  # its name in NumPy
    arguments: tuple[Any, ...] = ()


class ScalarCode(NamedTuple):
    """The operation's effect on one float32 element, in a loop that numba compiles for a captured step."""

    expression: str  # of the operands {0} and {1}
    bound: Bound | None = None  # of the difference to NumPy; None: the bits are NumPy's


class Shared(NamedTuple):
    """Temporary memory of each thread that shares an operation's work."""

    each: int = 0  # bytes
    most: int = 1  # threads: as many as there are parts


class Inferred(NamedTuple):
    """The result of a rule."""

    meta: Meta  # of the result
    workspace: int = 0  # bytes of temporary memory, without `shared`
    owned: int | None = None  # bytes of memory the result owns; None: all of its bytes, or 0 for a view
    int_bounds: tuple[int, int] | None = None
    work: int | None = None  # elements it passes over; None: those of the largest array
    number: np.dtype[Any] | None = None  # the dtype to which a ufunc casts a Python number as its second operand
    on_card: int | None = None  # bytes of temporary memory on a CUDA card; None: `workspace`
    shared: Shared = Shared()
    parts: Sequence[Options] = ()  # for several results packed in one: the options of `declare.UNPACK` for each


class Numbers(dict[float, Any]):
    """Python numbers as arrays of the dtype that an operation casts them to: NumPy takes half the time with those.

    Not cached, and returned unchanged: zero (-0.0 == 0.0), NaN, infinities, numbers that overflow the dtype, and every
    new number beyond 64 entries.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype

    def __missing__(self, number: float) -> Any:
        if not number or number - number != 0 or len(self) >= _NUMBERS:
            return number
        try:
            array = quietly(np.array, number, self.dtype)
        except OverflowError:
            return number  # the operation itself raises, or not
        array.flags.writeable = False
        self[number] = array
        return array


@dataclass(slots=True, eq=False, repr=False)
class Plan:
    """The needs of an operation for given operands, determined at submission, before any memory is touched."""

    op: Op
    meta: Meta  # of the result
    nbytes: int  # bytes of memory the result will own: 0 for a view
    workspace: int  # bytes of temporary memory while it runs, on one thread
    estimate: float = 0.0  # estimated seconds on a stream
    quick: bool = False  # it takes less time than a hop to a stream: it may run on the event loop's thread
    seconds: float = 0.0  # how much longer than a task's cost it would hold the loop's thread inline
    kernel: Any = None  # NumPy's, for running inline
    pair: bool = False  # whether it takes two operands and no options
    int_bounds: tuple[int, int] | None = None  # the range for Python integers among the operands
    numbers: Numbers | None = None
    # Estimated seconds on one thread, where these alone say whether other threads share it; else infinite. See `cut`.
    alone: float = inf
    on_card: int | None = None  # the workspace on a CUDA card; None: `workspace`
    shared: Shared = field(default_factory=Shared)  # on the host; that of the first thread is part of `workspace`
    parts: Sequence[Options] = ()  # see `Inferred`
    # By a token of a card's memory, if there is no more to compile there: what launches its kernels; opaque here.
    compiled_in: dict[object, Any] = field(default_factory=dict)
    name: str = field(init=False)
    on_card_seconds: float = field(init=False)
    shares_event: bool = field(init=False)
    cost: int = field(init=False)  # `nbytes` and `workspace`, where no size is rounded up
    needs_on_card: tuple[int, int] = field(init=False)  # bytes that the result takes there, and those with `on_card`
    overwrites: bool = field(init=False)  # whether the result may be written over a first operand of its form
    fixed: bool = field(init=False)  # whether its bytes are known, and are the same however many threads share it

    def __post_init__(self) -> None:
        self.name = self.op.name
        stated = self.op.launches is not None or self.op.view
        self.on_card_seconds = self.estimate / _CARD if stated else self.estimate
        self.shares_event = stated and not self.op.checks
        self.cost = self.nbytes + self.workspace
        if self.on_card is None:
            self.on_card = self.workspace
        rounded = self.nbytes + -self.nbytes % CARD_GRANULE
        self.needs_on_card = rounded, rounded + self.on_card
        self.overwrites = self.op.inplace and self.meta.contiguous and self.meta.known
        self.fixed = self.meta.known and not self.shared.each


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One operation.

    `kernel` is a name in the array namespace (`numpy`, `cupy`) or a function `kernel(xp, *arrays, **options)`.
    `rule(op, operands, options)` returns what it infers about the result, or raises NumPy's errors. A view whose plan
    owns bytes (`reshape` of an array that may be strided) may be a copy instead.
    """

    name: str
    kernel: str | Kernel
    rule: Callable[[Op, tuple[Operand, ...], Options], Inferred]
    out: bool = False  # the kernel takes `out=`, a C-contiguous array of the result's shape and dtype
    # `out` may be the first operand if its shape and dtype are equal, and any operand if the kernel is a ufunc. Not for
    # a single complex number, which NumPy rounds differently when it multiplies in place (but no buffer that small is
    # reused).
    inplace: bool = False
    releasing_gil: Kernel | None = None  # what host streams run if `kernel` would hold the GIL for long
    on_cupy: Kernel | None = None  # a wrapper of CuPy's function of the kernel's name, if that differs from NumPy's
    view: bool = False  # the result is a view of the first operand
    assigns: bool = False  # the result is the first operand with a part assigned
    checks: bool = False  # the kernel may raise for values in the data, see `kernels.checks`
    # A library with state of its own, which two streams must not use at once: on CUDA its tasks share one stream, and
    # no graph contains them.
    resource: str = ""
    exact: Op | None = None  # the variant for `asc.exact()`, if that has another kernel
    bound: Bound | None = None  # of the difference to `exact`, for numbers of ordinary size
    # Seconds for an element of at most four bytes on one thread, see `cost_model.Cost`. None: unknown. Then it runs on
    # the loop's thread only if it is tiny, and counts elsewhere as an operation of several passes.
    element_seconds: float | None = None
    cut: Cut = Cut.WHOLE  # ignored if the kernel is a universal function, which is cut by elements
    compiled_as: str = ""  # the loop in `kernels.loops` that replaces all of it; then it is cut into larger parts
    blas: Blas = Blas.NONE
    # How a captured step fuses it with its neighbours. On the host: by its universal function, if `kernel` does not
    # name that, or by code that numba compiles. On CUDA: by a trace of the kernel; None: only if it is cut by elements.
    ufunc: UfuncCall | None = None
    scalar_code: ScalarCode | None = None
    fused_on_cuda: bool | None = None
    # The most kernels and other items on a CUDA card's stream, for contiguous operands in single precision of at
    # most one block; counted without CUB, which takes two for some reductions. None: it depends, or it is a view
    # (mostly none), or not counted. Only operations that state it share an event with others.
    launches: int | None = None
    doc: str = ""
    # Not copied by `dataclasses.replace`: a variant has its own.
    plans: dict[Hashable, Plan] = field(default_factory=dict, init=False, repr=False)
    # The `plans` for a tensor and a Python number, by the number's type and the tensor's form.
    with_number: dict[Hashable, dict[Hashable, Plan]] = field(
        default_factory=lambda: {int: {}, float: {}}, init=False, repr=False
    )
    kernels: dict[Any, Kernel] = field(default_factory=dict, init=False, repr=False)


def plan_key(operands: tuple[Operand, ...], options: Options) -> tuple[Hashable, ...]:
    """The properties that a plan depends on: metas by identity, scalars by type or dtype, options by type and value."""
    kinds = tuple([operand if type(operand) is Meta else _kind(operand) for operand in operands])
    if not options:
        return kinds
    values = options.values()
    return (*kinds, *options, *values, *map(type, values))  # 0 == 0.0 == False, but NumPy distinguishes them


def plan(op: Op, operands: tuple[Operand, ...], options: Options) -> Plan:
    """The plan of the operation for these operands, from its cache or from its rule.

    Raises NumPy's errors for these shapes and dtypes, and `OverflowError` for a Python integer that does not fit the
    dtype it is cast to.
    """
    found = None if options else op.plans.get(operands)  # without numbers or options, the metas are the key
    if found is None:
        key = plan_key(operands, options)
        found = op.plans.get(key)
    if found is None:
        found = _new_plan(op, operands, options)
        if len(op.plans) >= _PLAN_LIMIT:
            op.plans.clear()
            for known in op.with_number.values():
                known.clear()
        op.plans[key] = found
        if found.pair and found.int_bounds is None and key[1] in op.with_number:
            op.with_number[key[1]][key[0]] = found
    if found.int_bounds is not None:
        check_int_bounds(operands, found.int_bounds)
    return found


def check_int_bounds(operands: tuple[object, ...], bounds: tuple[int, int]) -> None:
    """Raise NumPy's `OverflowError` if a Python integer among the operands is out of bounds."""
    low, high = bounds
    for value in operands:
        if type(value) is int and not low <= value <= high:
            raise OverflowError(f"Python integer {value} out of bounds: the result's dtype holds {low} to {high}")


def resolve(op: Op, xp: Any) -> Kernel:
    """The operation's kernel as a function of arrays and options in the namespace `xp`.

    A result without axes may be a NumPy scalar if no `out=` is given, as from NumPy.
    """
    found = op.kernels.get(xp)
    if found is None:
        found = bind(op.releasing_gil if xp is np and op.releasing_gil else op.kernel, xp)
        found = op.kernels[xp] = partial(op.on_cupy, found) if op.on_cupy and xp is not np else found
    return found


def bind(kernel: str | Kernel, xp: Any) -> Kernel:
    """A kernel as a function of arrays and options in a namespace."""
    if isinstance(kernel, str):
        function: Kernel = getattr(xp, kernel)
        return partial(_logical, function) if kernel.startswith("logical_") and xp is not np else function
    return partial(kernel, xp)


def _logical(function: Kernel, *arrays: Any, **options: Any) -> Any:
    """A logical function of CuPy's. Alone it takes no complex numbers, nor integers out of the other's range."""
    return function(*[a != 0 if isinstance(a, int) or np.iscomplexobj(a) else a for a in arrays], **options)


def _kind(operand: Operand) -> Hashable:
    kind: type = type(operand)
    if kind in _PYTHON_SCALARS:
        return kind
    if isinstance(operand, np.generic):
        return operand.dtype
    raise TypeError(f"{type(operand).__name__} is not an operand: use a Tensor, a Python number or a NumPy scalar")


def _new_plan(op: Op, operands: tuple[Operand, ...], options: Options) -> Plan:
    found = _infer(op, operands, options)
    result, owned, workspace = found.meta, found.owned, found.workspace + found.shared.each
    if owned is None:
        owned = 0 if op.view else result.nbytes
    seconds: float | None = 0.0
    estimate, alone = 0.0, inf
    if not op.view or owned or not result.known:
        metas = [operand for operand in operands if isinstance(operand, Meta)]
        if op.cut not in PRODUCTS and result.known and all(one.shape in (result.shape, ()) for one in metas):
            alone = seconds_of(prod(result.bound), result.dtype.itemsize, op.element_seconds)
        seconds = inline_seconds(op.element_seconds, result, metas, workspace, found.work)
        estimate = stream_seconds(op.element_seconds, result, metas, found.work)
    return Plan(
        op, result, owned, workspace, estimate,
        quick=seconds is not None,
        seconds=seconds or 0.0,
        kernel=resolve(op, np) if op.releasing_gil is None else bind(op.kernel, np),
        pair=len(operands) == 2 and not options,
        int_bounds=found.int_bounds,
        numbers=None if found.number is None else Numbers(found.number),
        alone=alone,
        on_card=found.on_card,
        shared=found.shared,
        parts=found.parts,
    )  # fmt: skip


def _infer(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Run the rule. If lengths are unknown, run it with other lengths, to see which of the result's depend on them.

    It raises only if the operation fails for all lengths that are tried: what only some lengths make wrong is known
    with the data, and raises at `await`.
    """
    if all(operand.known for operand in operands if isinstance(operand, Meta)):
        return op.rule(op, operands, options)
    try:
        largest = op.rule(op, _with_lengths(operands, lambda bound: bound), options)
        # Length 0 tells most, since slices clamp. But a maximum needs at least one element, and length 1 broadcasts
        # with everything, so the next length to try is one more than the bound.
        try:
            other = op.rule(op, _with_lengths(operands, _always(0)), options)
        except (ValueError, IndexError):
            other = op.rule(op, _with_lengths(operands, lambda bound: bound + 1 if bound else 0), options)
    except (ValueError, IndexError) as error:
        return _of_some_lengths(op, operands, options, error)
    return largest._replace(meta=_merge(largest.meta, other.meta))


def _of_some_lengths(op: Op, operands: tuple[Operand, ...], options: Options, refused: Exception) -> Inferred:
    """What the rule infers if it refuses some lengths: `masked + x` fits only if as many were selected as `x` has.

    All unknown lengths are tried as one: those that other operands have, or options ask for, and two that are large.
    """
    metas = [operand for operand in operands if isinstance(operand, Meta)]
    most = max([bound for one in metas for n, bound in zip(one.shape, one.bound, strict=True) if n is None])
    asked = [
        abs(prod(shape)) for shape in options.values() if isinstance(shape, tuple) and {*map(type, shape)} == {int}
    ]
    found: dict[int, Inferred] = {}
    near = range(max(most - 16, 0), most)  # one of them is a multiple of whatever is asked for, below 17
    for length in sorted({0, 1, 2, *near, *_LARGE, *asked, *[n for one in metas for n in one.bound]}):
        with suppress(ValueError, IndexError):
            found[length] = op.rule(op, _with_lengths(operands, _always(length)), options)
    if not found:
        text = f"{op.name}: a shape among the operands is not known until it is awaited; `await` it first ({refused})"
        raise ValueError(text) from refused
    merged = reduce(_merge, [one.meta for one in found.values()])
    possible = [one for length, one in found.items() if length <= most]
    bound = tuple([
        max([one.meta.bound[axis] for one in possible], default=0) if length is None else length
        for axis, length in enumerate(merged.shape)
    ])  # fmt: skip
    return found[max([length for length in found if length <= most], default=min(found))]._replace(
        meta=meta(merged.shape, merged.dtype, merged.contiguous, None if merged.known else bound),
        workspace=max([one.workspace for one in possible], default=0),
    )


def _always(length: int) -> Callable[[int], int]:
    return lambda bound: length


def _with_lengths(operands: tuple[Operand, ...], length: Callable[[int], int]) -> tuple[Operand, ...]:
    """The operands with a length in place of each that is unknown, by its bound."""

    def known(one: Meta) -> Meta:
        pairs = zip(one.shape, one.bound, strict=True)
        shape = tuple([length(bound) if n is None else n for n, bound in pairs])
        return meta(shape, one.dtype, one.contiguous)

    return tuple([known(one) if isinstance(one, Meta) and not one.known else one for one in operands])


def _merge(largest: Meta, other: Meta) -> Meta:
    if len(largest.shape) != len(other.shape):
        raise ValueError("the number of dimensions of the result depends on an unknown length")
    shape = tuple([a if a == b else None for a, b in zip(largest.shape, other.shape, strict=True)])
    bound = largest.bound if None in shape else None
    return meta(shape, largest.dtype, largest.contiguous and other.contiguous, bound)


# -- switching to the bits of the plain kernels ------------------------------------------------------------------------

_exactly: ContextVar[tuple[Mark, ...]] = ContextVar("asyncsched.exact", default=())


def asked() -> bool:
    """Whether the current context is inside of one."""
    return bool(marks := _exactly.get()) and holds(marks)


@contextmanager
def exact() -> Iterator[None]:
    """Make operations issued inside the block give the bits of the plain kernels: `with asc.exact():`.

    Outside of it

    - a few operations of networks in float32 have a faster kernel: gelu by a quotient; softmax, layer_norm,
      cross_entropy and attention by loops that numba compiles, if it is installed, once they are compiled.
      `TABLE["gelu"].bound` says how far results may differ, as for each operation;
    - large matrix products are cut into parts for several streams, which may change their last bits;
    - a matrix decomposition that runs alone uses all BLAS threads, whose number may change its last bits; inside it
      uses those of one stream;
    - numba compiles float32 runs of a captured step with an exp and a tanh of its own (`TABLE["exp"].scalar_code`). On
      CUDA such runs are kernels made from CuPy's own expressions (`devices.cuda.fused`). To prevent both, capture the
      step inside. (On CUDA, an operation of several elementwise steps is such a kernel everywhere, with the bits of its
      steps.)

    All other operations are always exact.

    It holds only for this context: for the coroutine that uses it, and for tasks created inside. Derivatives are exact
    if `backward()` is called inside. It waits for nothing.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.ones((2, 2), np.float32))
    ...         with asc.exact():
    ...             return await asc.nn.softmax(x)
    >>> asc.run(main)
    array([[0.5, 0.5],
           [0.5, 0.5]], dtype=float32)
    """
    mark = Mark(_exactly)
    mark.enter()
    try:
        yield
    finally:
        mark.leave()
