"""The CUDA C++ of an operation for one element: its kernel is run on names in place of arrays.

A kernel is written against an array namespace. `Names` is a namespace that computes nothing. Each of its functions
notes the line of C++ that CuPy's universal function of the same name has for these dtypes. So there is no second table
of expressions that might differ: each line is CuPy's own, each intermediate has the dtype and the rounding that it has
there, and an operation of many steps (gelu, a gradient) is the sequence of them that its kernel is made of.

The CUDA C++ of universal functions is not part of CuPy's public interface. A universal function has several loops, one
for each list of dtypes, and CuPy chooses among them as NumPy does. If a version of CuPy does not have the names of
`PRIVATE`, AttributeError or TypeError is raised. Then operations run one by one, by CuPy's public functions. If an
operation uses a name that is not there, `NotElementwise` is raised, and the operation runs by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np

from ...ops.op import Cut, Op, bind
from ...ops.program import Ref, Step
from ...ops.quiet import quietly

# All private names, as paths from CuPy, from one of its universal functions, or from a loop. Tested with CuPy 14.2.
PRIVATE: Final = {
    "typename": "_core._scalar.get_typename",
    "scalar": "_core._scalar.CScalar",
    "where": "_sorting.search._where_ufunc",
    "clip": "_core._routines_math.clip",
    "loops": "_ops",
    "loops by result": "_out_ops",
    "preparation": "_loop_prep",
    "preamble": "_preamble",
    "choose by result": "_guess_routine_from_dtype",
    "choose by operands": "_guess_routine_from_in_types",
    "resolution": "_resolution_func",
}
DTYPES = "?bBhHiIlLqQefd"  # dtypes of expressions: no complex numbers
# In CuPy's kernels NVRTC contracts these to multiply-adds. In a kernel of many operations it is told not to, so their
# bits may differ there. By the dtypes of their operands. `tests/devices/test_machine_code.py` finds them, and names
# others for which no bit was seen to differ.
_CONTRACTED: Final = {
    "cupy_remainder": "efd",
    "cupy_power": "d",
    "cupy_float_power": "d",
    "cupy_logaddexp": "d",
    "cupy_logaddexp2": "efd",
    "cupy_i0": "efd",
}


class NotElementwise(Exception):
    """The operation is not a single expression."""


class Loop(NamedTuple):
    """The loop of a universal function for elements of certain dtypes.

    Attributes:
        reads: the dtypes to which its operands are cast.
        writes: the dtype of its result.
        routine: a statement in C++ that reads `in0`, `in1`, ... and assigns to `out0`.
        preamble: code in front of the kernel.
    """

    reads: Sequence[Any]
    writes: np.dtype[Any]
    routine: str
    preamble: str


class Operand(NamedTuple):
    """An operand's dtype. For a Python number also its type, by which the dtype gives way to others."""

    dtype: np.dtype[Any]
    weak: type[int] | type[float] | None = None


@dataclass(slots=True)
class Expression:
    """The code of a step for one element. It reads `v3`, the element of slot 3, and writes `v` with the number of its
    own slot.

    Attributes:
        lines: of C++.
        numbers: scalars that the lines read, by name, in the dtypes in which CuPy computes with them.
        preambles: code in front of the kernel.
    """

    lines: list[str] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    preambles: dict[str, None] = field(default_factory=dict)


def expression(cupy: Any, step: Step, slot: int, dtype_of: Callable[[int], np.dtype[Any]]) -> Expression:
    """The expression of a step whose result goes into this slot.

    Raises:
        NotElementwise: if the step has none.
    """
    op = step.op
    if not goes_by_elements(op) and not isinstance(op.kernel, str):
        raise NotElementwise(op.name)
    names = Names(cupy, f"{slot}_")
    try:
        args = [names.element(f"v{a.slot}", dtype_of(a.slot)) if type(a) is Ref else a for a in step.args]
        result = bind(op.kernel, names)(*args, **step.options)
        if type(result) is not Element or result.dtype != step.form.dtype:
            raise NotElementwise(op.name)
        names.line(f"v{slot}", step.form.dtype, result.name)
    except (AttributeError, TypeError, ValueError, OverflowError, IndexError) as error:
        raise NotElementwise(op.name) from error
    return names.noted


def goes_by_elements(op: Op) -> bool:
    """Whether an operation declares that it goes element by element."""
    return op.cut is Cut.BY_ELEMENTS if op.fused_on_cuda is None else op.fused_on_cuda


class Names:
    """An array namespace of names: see the module's docstring."""

    float16: Final = np.float16
    float32: Final = np.float32
    float64: Final = np.float64
    bool_: Final = np.bool_
    intp: Final = np.intp

    def __init__(self, cupy: Any, prefix: str) -> None:
        self._cupy = cupy
        self._prefix = prefix
        self._count = 0
        self.noted: Expression = Expression()

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._cupy, name)
        if not isinstance(function, self._cupy.ufunc):
            raise AttributeError(f"{name} is no universal function")
        return partial(self.call, function)

    def element(self, name: str, dtype: Any) -> Element:
        dtype = np.dtype(dtype)
        if dtype.char not in DTYPES:
            raise NotElementwise(dtype)
        return Element(self, name, dtype)

    def line(self, target: str, dtype: Any, value: str) -> None:
        """Note that a new variable has this value, cast to its type as CuPy casts."""
        self.noted.lines.append(f"{self.ctype(dtype)} {target}; {target} = {value};")

    def new(self) -> str:
        """A name for a variable."""
        self._count += 1
        return f"t{self._prefix}{self._count}"

    def ctype(self, dtype: Any) -> str:
        """The type in C++. Its header, if it has one, is noted: CuPy includes those of the parameters alone."""
        headers: set[str] = set()
        found: str = private(self._cupy, "typename")(np.dtype(dtype), headers)
        self.noted.preambles |= dict.fromkeys(headers)
        return found

    # -- functions of kernels that are not universal functions ------------------------------------------------------

    def where(self, condition: Any, x: Any, y: Any) -> Element:
        return self.call(private(self._cupy, "where"), condition.astype(bool), x, y)

    def clip(self, x: Any, low: Any, high: Any, out: Element | None = None) -> Element:
        return self.call(private(self._cupy, "clip"), x, low, high, out=out)

    def kept(self, x: Any, mask: Any, out: Element | None = None) -> Element:
        """For `kernels.elementwise.kept`, which works by bits on whole arrays."""
        return self._into(out, self.where(mask, x, 0))

    def empty(self, shape: Any, dtype: Any) -> Element:
        return self.element("", dtype)

    def empty_like(self, x: Element, dtype: Any = None) -> Element:
        return self.element("", x.dtype if dtype is None else dtype)

    def full_like(self, x: Element, value: Any) -> Element:
        return self.element(self.number(value, x.dtype), x.dtype)

    # -- operations -------------------------------------------------------------------------------------------------

    def call(self, ufunc: Any, *args: Any, out: Element | None = None, dtype: Any = None) -> Element:
        """Note the lines of a universal function."""
        loop = loop_of(ufunc, [_operand(arg) for arg in args], dtype)
        self.noted.preambles[loop.preamble] = None
        inputs = []
        for place, (arg, kind) in enumerate(zip(args, loop.reads, strict=True)):
            value = _cast(arg.name, arg.dtype, kind) if type(arg) is Element else self.number(arg, kind)
            inputs.append(f"typedef {self.ctype(kind)} in{place}_type; const in{place}_type in{place}({value});")
        ctype, name = self.ctype(loop.writes), self.new()
        self.noted.lines += [
            f"{ctype} {name}; {{",
            *inputs,
            f"typedef {ctype} out0_type; out0_type out0; {loop.routine}; {name} = out0; }}",
        ]
        return self._into(out, self.element(name, loop.writes))

    @staticmethod
    def _into(out: Element | None, result: Element) -> Element:
        if out is None:
            return result
        out.become(result)
        return out

    def number(self, value: Any, dtype: Any) -> str:
        """The name of a number, in the dtype in which CuPy computes with it. It stays a parameter, as in CuPy."""
        name = f"c{self.new()}"
        self.noted.numbers[name] = number_as(value, dtype)
        return name


class Element:
    """A name in place of an array, with the lines that computed it. Writing to it gives it a new name."""

    __slots__ = ("_name", "_names", "dtype")
    __array_ufunc__ = None

    ndim = 1
    size = 1
    shape: tuple[int, ...] = (1,)
    strides: tuple[int, ...] = ()

    def __init__(self, names: Names, name: str, dtype: np.dtype[Any]) -> None:
        self._names, self._name = names, name
        self.dtype: np.dtype[Any] = dtype

    @property
    def name(self) -> str:
        if not self._name:
            raise NotElementwise("read before it is written")
        return self._name

    def become(self, other: Element) -> None:
        """Take another's value, cast to the own dtype."""
        if other.name != self._name or other.dtype != self.dtype:
            self._name = self._names.new()
            self._names.line(self._name, self.dtype, _cast(other.name, other.dtype, self.dtype))

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def astype(self, dtype: Any, copy: bool = True) -> Element:
        found = self._names.element("", dtype)
        found.become(self)
        return found

    def copy(self, order: str = "C") -> Element:
        return self.astype(self.dtype)

    def reshape(self, *shape: Any) -> Element:
        return self

    def __getitem__(self, key: Any) -> Element:
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        if value is not self:
            self.become(value if type(value) is Element else self._names.full_like(self, value))

    def _call(self, name: str, *operands: Any, out: Element | None = None) -> Element:
        """The universal function of this name, for operands."""
        result: Element = getattr(self._names, name)(*operands, out=out)
        return result


def _operators() -> None:
    """The operators that kernels use, and their universal functions."""
    arithmetic = {"add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "and": "bitwise_and"}
    comparisons = {
        "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal"
    }  # fmt: skip
    for operator, name in arithmetic.items():
        setattr(Element, f"__r{operator}__", lambda x, y, name=name: x._call(name, y, x))
        setattr(Element, f"__i{operator}__", lambda x, y, name=name: x._call(name, x, y, out=x))
    for operator, name in (("neg", "negative"), ("invert", "invert")):
        setattr(Element, f"__{operator}__", lambda x, name=name: x._call(name, x))
    for operator, name in (arithmetic | comparisons).items():
        setattr(Element, f"__{operator}__", lambda x, y, name=name: x._call(name, x, y))


_operators()


def number_as(value: Any, dtype: Any) -> Any:
    """A number in the dtype in which CuPy computes with it."""
    return quietly(lambda: (np.array(value, dtype) if type(value) is int else np.array(value).astype(dtype))[()])


def _cast(name: str, source: Any, target: Any) -> str:
    """How CuPy casts in an assignment."""
    return f"({name}) ? 1 : 0" if source.kind == "b" and np.dtype(target).kind != "b" else name


def _operand(arg: Any) -> Operand:
    if type(arg) is Element:
        return Operand(arg.dtype)
    found = np.array(arg).dtype
    if found.char not in DTYPES:
        raise NotElementwise(found)
    return Operand(found, type(arg) if type(arg) in (int, float) else None)


# -- CuPy's universal functions ---------------------------------------------------------------------------------------


def loop_of(ufunc: Any, operands: Sequence[Operand], dtype: Any) -> Loop:
    """CuPy's choice among a function's loops.

    Args:
        dtype: of the result, if one was asked for.

    Raises:
        NotElementwise: if there is no loop, or it is more than an expression.
    """
    if ufunc.nin != len(operands) or ufunc.nout != 1 or private(ufunc, "preparation"):
        raise NotElementwise(ufunc.name)
    if dtype is not None:
        loops = private(ufunc, "loops by result") or private(ufunc, "loops")
        op = private(loops, "choose by result")(np.dtype(dtype))
    else:
        weak, strong = ([_rank(o.dtype) for o in operands if (o.weak is not None) is want] for want in (True, False))
        gives_way = bool(strong) and max(strong) >= max(weak, default=-1)
        weaks = tuple([(o.weak or False) if gives_way else False for o in operands])
        op = private(private(ufunc, "loops"), "choose by operands")(tuple([o.dtype for o in operands]), weaks)
    if op is None or not isinstance(op.routine, str) or private(op, "resolution") is not None:
        raise NotElementwise(ufunc.name)
    if np.dtype(op.in_types[0]).char in _CONTRACTED.get(ufunc.name, ""):
        raise NotElementwise(ufunc.name)
    return Loop(op.in_types, np.dtype(op.out_types[0]), op.routine, private(ufunc, "preamble"))


def private(thing: Any, name: str) -> Any:
    """CuPy's object with a private name."""
    return attrgetter(PRIVATE[name])(thing)


def _rank(dtype: np.dtype[Any]) -> int:
    """Booleans, integers, floats: a Python number gives way to a dtype of its own rank or a higher one."""
    return "biuf".index(dtype.kind) if dtype.kind in "bi" else 1 if dtype.kind == "u" else 2
