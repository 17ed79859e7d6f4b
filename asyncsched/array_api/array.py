"""Arrays for code that cannot `await`. Each has a tensor of the background scheduler."""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, TypeVar, cast

import numpy as np

from .._core.model import Value
from .._instead import ARRAY, no_attribute
from .._tree import find, map_leaves
from ..background import Background, Kept, check_may_block
from ..devices.memory import form_of, reveal
from ..errors import ImplicitBarrierError, SchedulerClosed, TaskTooLarge
from ..ops.index_keys import through
from ..ops.meta import Meta
from ..ops.op import Op
from ..ops.table import TABLE
from ..runtime.life import Life
from ..tensors.handles import reach
from ..tensors.methods import Pair
from ..tensors.tensor import UFUNC_OPERATORS, Tensor
from .places import Place, Storage, apply_to, placed

T = TypeVar("T")

VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")
_OF_ANOTHER = (
    "an array is of a scheduler that was closed, perhaps by `array_api.using`: `xp.asarray(np.asarray(x))` brings it to"
    " the one in use"
)
_CURES = (  # the cures in errors of tensors, and those here
    (r"`(x = )?await s\.put\([^`]*\)` makes (it a tensor|a tensor from a list)", "`xp.asarray(a)` makes it an array"),
    (r"`await` one and `put` it into the other's", "`xp.asarray(np.asarray(x))` brings one to that in use"),
    (r"`await` it, and put the array", "`xp.asarray(np.asarray(t))` copies it"),
    (r"`await` it first", "`np.asarray(x)` waits for it"),
    (r"\basc\.(?=\w)", "xp."),
    (r"use a Tensor,", "use an Array,"),
    (r"(index|boolean) tensors", r"\1 arrays"),
    (r"only the thread of a scheduler's event loop may use it:.*", _OF_ANOTHER),  # while that is being closed
)
_SHOWN = 1000  # arrays with at most so many elements show them in `repr`

kept: Final = Kept("array_api")  # the scheduler behind this namespace
background: Callable[[], Background] = kept.get


class Array:
    """An array of the standard, made by the functions of `asyncsched.array_api`.

    Operations are issued and return at once. `bool(x)`, `float(x)`, `len(x)` of a length that depends on data,
    `np.asarray(x)` and all else that needs a value wait for it. Basic slices, `permute_dims`, `flip`, `squeeze` and the
    like are views where NumPy's are: `x[i] = v` and `x += 1` write to the memory that the array shares with others.
    Values read before, and operations issued before, do not change. If a write fails when it runs (by an index tensor
    that is out of range, say), the whole memory has failed: all later reads raise the error.

    `np.asarray(x)` is a copy that may be written to. So SciPy's functions with `output=x` leave `x` unchanged: write
    `x[...] = scipy.ndimage.laplace(y)`.

    >>> from asyncsched import array_api as xp
    >>> x = xp.zeros((2, 3))
    >>> column = x[:, 1]
    >>> column += 5
    >>> x
    Array([[0., 5., 0.],
           [0., 5., 0.]], dtype=float64, device=cpu)

    Raises:
        ImplicitBarrierError: wherever it would block a thread that runs an event loop, or a task.
    """

    __slots__ = ("__weakref__", "_meta", "_place")

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # `==` goes by elements

    def __init__(self, tensor: Tensor) -> None:
        self._place: Place = Place(Storage(tensor._value)) if tensor._node is None else tensor._node
        self._meta: Meta = tensor._value.meta

    if not TYPE_CHECKING:  # with it, type checkers would find any name

        def __getattr__(self, name: str) -> NoReturn:
            functions = sys.modules[__package__].__all__
            cures = {name: f"`xp.{name}(x)`: functions are not methods here"} if name in functions else ARRAY
            raise no_attribute("an Array", name, cures, type(self))

    # -- attributes ---------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> np.dtype[Any]:
        """The data type."""
        return self._meta.dtype

    @property
    def device(self) -> str:
        """The name of its device."""
        return cast(str, self._place.storage.value.device.name)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._meta.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes. Waits if one depends on data."""
        known(self)
        return self._meta.bound

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.dtype.itemsize

    @property
    def T(self) -> Array:
        """The transpose of an array with two axes."""
        return _one(lambda x: x.T, self)

    @property
    def mT(self) -> Array:
        """The array with its last two axes exchanged."""
        return _one(lambda x: x.mT, self)

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        """`asyncsched.array_api`."""
        if api_version not in (None, *VERSIONS):
            raise ValueError(f"the array API standard {api_version} is not known: one of {', '.join(VERSIONS)} is")
        return sys.modules[__package__]

    def to_device(self, device: str, /, *, stream: None = None) -> Array:
        """The array on another device: itself if it is there already."""
        return _one(Tensor.to_device, self, device, stream=stream)

    # -- values: these wait -------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self._scalar("bool"))

    def __int__(self) -> int:
        return int(self._scalar("int"))

    def __float__(self) -> float:
        return float(self._scalar("float"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    def __index__(self) -> int:
        return operator.index(self._scalar("an index"))

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of an array without axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        return map(self.__getitem__, range(len(self)))  # one by one, since `np.iterable(x)` takes none

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("np.asarray(x, copy=False): an array of the scheduler is always copied to NumPy")
        return np.asarray(host(self), dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """NumPy's own functions, for copies on the host. They give ndarrays, but `np.float64(2) * x` is an array of
        this namespace."""
        written = inputs[:1] if method == "at" else options.get("out", ())
        if any(isinstance(out, Array) for out in written):
            raise TypeError(f"np.{ufunc.__name__} cannot write to an array of the scheduler: use `x[...] = ...`")
        first: Any = inputs[0]  # some of NumPy's scalars come as arrays without axes: `[()]` makes them scalars again
        is_scalar = isinstance(first, np.generic | np.ndarray) and not first.ndim
        if is_scalar and method == "__call__" and not options and ufunc.__name__ in UFUNC_OPERATORS:
            return _one(ufunc, first[()], inputs[1])
        given, named = map_leaves(lambda leaf: host(leaf) if isinstance(leaf, Array) else leaf, (inputs, options))
        return getattr(ufunc, method)(*given, **named)

    def __copy__(self) -> Array:
        return _one(Tensor.copy, self)

    def __deepcopy__(self, memo: object) -> Array:
        return _one(Tensor.copy, self)

    def __reduce__(self) -> tuple[Callable[[Any, None], Array], tuple[np.ndarray[Any, Any], None]]:
        return put, (host(self), None)  # on the first device of its reader

    def __dlpack__(
        self, *, stream: Any = None, max_version: Pair = None, dl_device: Pair = None, copy: bool | None = None
    ) -> Any:
        """The array for another library. The library may write to it only with `copy=False`. It does not see later
        writes here."""
        tensor: Any = _asked(self._place.tensor)
        told: dict[str, Any] = {"max_version": max_version, "dl_device": dl_device, "copy": copy}
        there(tensor._value)
        if isinstance(tensor.result(), np.ndarray) and copy is False:
            return _writable(tensor._value.array).__dlpack__(stream=stream, **told)
        return tensor.__dlpack__(stream=stream, **told)

    def __dlpack_device__(self) -> tuple[int, int]:
        return cast("tuple[int, int]", self._place.storage.value.device.dlpack)

    def __repr__(self) -> str:
        with suppress(Exception):  # its value failed, or this thread may not wait for it: show the state
            check_may_block("repr")
            if self.size <= _SHOWN:
                text = np.array2string(host(self), separator=", ", prefix="Array(")
                return f"Array({text}, dtype={self.dtype}, device={self.device})"
        status = Tensor(self._place.storage.value)._status()
        return f"Array(shape={self._meta.shape}, dtype={self.dtype}, device={self.device}, {status})"

    def __format__(self, spec: str) -> str:
        return format(host(self), spec) if spec else repr(self)

    def _scalar(self, what: str) -> Any:
        check_may_block(f"{what} of an array")
        if self.size != 1:
            raise TypeError(f"only an array of one element can become {what}, and the shape is {self.shape}")
        return host(self).reshape(())[()]

    # -- parts --------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Array:
        known(self)
        return _asked(_part, self._place, map_leaves(_place_of, _key(key, self.device)))

    def __setitem__(self, key: Any, new: Any) -> None:
        known(self)
        key, new = map_leaves(_place_of, (_key(key, self.device), new))
        _written(self._place, self._place.assign, key, new)

    # -- operators ----------------------------------------------------------------------------------------------

    def __neg__(self) -> Array:
        return _one(operator.neg, self)

    def __pos__(self) -> Array:
        return _one(operator.pos, self)

    def __abs__(self) -> Array:
        return _one(abs, self)

    def __invert__(self) -> Array:
        return _one(operator.invert, self)


def issue(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function of tensors with arrays. It gives arrays. Waits for lengths that depend on data.

    Also for arrays without axes in the place of numbers, as in `xp.arange(n)`: the loop's thread cannot wait for them.
    """
    background()
    arrays = find((Array,), (args, options))
    for x in arrays:
        known(x)
    with suppress(ImplicitBarrierError):
        return _asked(_of_arrays, fn, args, options)
    numbers = {id(x): host(x)[()] for x in arrays if not x.ndim}
    if not numbers:
        raise TypeError(f"{fn.__name__} takes a number where an array with axes was given")
    args, options = map_leaves(
        lambda leaf: numbers.get(id(leaf), leaf) if isinstance(leaf, Array) else leaf, (args, options)
    )
    return issue(fn, *args, **options)


def _of_arrays(fn: Callable[..., Any], args: Any, options: Any) -> Any:
    """The same, on the loop's thread, with the present values of arrays."""
    given: dict[int, tuple[Tensor, Array]] = {}

    def as_tensor(leaf: Any) -> Any:
        if not isinstance(leaf, Array):
            return leaf
        tensor = leaf._place.tensor()
        given[id(tensor)] = tensor, leaf
        return tensor

    def as_array(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return given[id(leaf)][1] if id(leaf) in given else Array(placed(leaf))

    args, options = map_leaves(as_tensor, (args, options))
    return map_leaves(as_array, fn(*args, **options))


def _written(place: Place, write: Callable[..., None], *args: Any) -> None:
    """Write to an array. If others hold its present version, this takes room for a second one, or waits until nobody
    holds it."""
    try:
        _asked(write, *args)
    except TaskTooLarge:  # it may do with one array, which is known once the version is there
        unread = place.storage.unread
        _with_scheduler(lambda scheduler: scheduler.issue_after(unread, write, *args))


def _asked(fn: Callable[..., T], *args: Any) -> T:
    """Call a function on the loop's thread."""
    return _with_scheduler(lambda scheduler: scheduler.issue(fn, *args))


def _with_scheduler(call: Callable[[Background], T]) -> T:
    """Call a function with the scheduler in use. Again, if another thread has closed it meanwhile, by `using`."""
    scheduler = background()
    try:
        return call(scheduler)
    except SchedulerClosed:
        if background() is not scheduler:
            return _with_scheduler(call)
        if scheduler.runtime.life is not Life.OPEN:
            raise
        raise SchedulerClosed(_OF_ANOTHER) from None
    except Exception as error:
        _reword(error)
        raise


def explained(function: Callable[..., Any], *args: Any, **options: Any) -> NoReturn:
    """Raise the error for an argument that a function does not have, in this namespace's words."""
    try:
        function(*args, **options)
    except TypeError as error:
        _reword(error)
        raise
    raise AssertionError(f"{function.__name__} took {args} and {options}")


def put(array: Any, device: str | None) -> Array:
    """An array of anything that can be copied to a device. Waits for room."""
    return Array(_with_scheduler(lambda on: on.wait(partial(on.scheduler.put, array, device=device))))


def _reword(error: Exception) -> None:
    """Have an error name the cure of this namespace, in which nothing is awaited."""
    if error.args and isinstance(error.args[0], str):
        text = error.args[0]
        for pattern, ours in _CURES:
            text = re.sub(pattern, ours, text)
        error.args = (text, *error.args[1:])


def _one(fn: Callable[..., Any], *args: Any, **options: Any) -> Array:
    return cast(Array, issue(fn, *args, **options))


def _operated(function: Callable[[Any, Any], Tensor], a: Any, b: Any) -> Array:
    """The same for an operator, in fewer steps: its result is no view."""
    return Array(_asked(apply_to, function, _place_of(a), _place_of(b)))


def _part(place: Place, key: Any) -> Array:
    return Array(place.part(key))  # here, since on its way to another thread a tensor would hold its base


def _key(key: Any, device: str) -> Any:
    """A key whose slices have numbers. Arrays in slices are read here, which may wait. NumPy's arrays are put.

    A bool is a mask without axes, as in NumPy.
    """
    if isinstance(key, tuple):
        return tuple([_key(part, device) for part in key])
    if isinstance(key, bool | np.bool | np.ndarray):
        return put(np.asarray(key), device)
    if not isinstance(key, slice):
        return key
    return slice(*[end.__index__() if isinstance(end, Array) else end for end in (key.start, key.stop, key.step)])


def _place_of(leaf: Any) -> Any:
    if not isinstance(leaf, Array):
        return leaf
    known(leaf)
    return leaf._place


def known(x: Array) -> None:
    """Wait for lengths that depend on data."""
    if not x._meta.known:
        value = there(x._place.storage.value)
        reveal(value)
        x._meta = value.meta


def in_order(x: Array) -> None:
    """Find out whether the array's storage is in C order, if that is not known: it decides whether a result is a
    view."""
    value = x._place.storage.value
    if not value.meta.contiguous and not value.device.remote and there(value).array.flags.c_contiguous:
        value.meta = form_of(value)


def there(value: Value) -> Value:
    """A coroutine that waits until the value is there."""
    check_may_block("the value of an array")
    try:
        if not Tensor(value).done():
            _with_scheduler(operator.methodcaller("wait", _done, value))
        if value.failure is not None:
            value.failure.rethrow()
        return value
    finally:
        del value  # an exception holds this frame


def _writable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A view that may be written to. The array itself may have been marked read-only, as when it was awaited. Then the
    marks stay as they are: on it, and on the block that it is in."""
    marked = [one for one in (array.base, array) if type(one) is np.ndarray and not one.flags.writeable]
    try:
        for one in marked:
            one.setflags(write=True)
        return array.view()
    except ValueError:  # it is somebody's memory, who lets nobody write to it
        return array
    finally:
        for one in marked:
            one.setflags(write=False)


def host(x: Array) -> np.ndarray[Any, Any]:
    """A copy on the host."""
    lease, path = x._place.storage.lease, x._place.path  # it must not be written over meanwhile
    value = there(lease._value)
    device = value.device
    if device.remote:
        return np.array(through(np, device.fetch(value.array), path))
    return cast("np.ndarray[Any, Any]", device.fetch(through(device.xp, value.array, path)))


async def _done(value: Value) -> None:
    await reach(value)


def _binary(name: str, function: Callable[..., Any], ufunc: Op | None) -> None:
    """The operator `name`, reflected and in place too where Python has those."""

    def forward(self: Array, other: Any) -> Array:
        return _operated(function, self, other) if isinstance(other, _OPERANDS) else NotImplemented

    def backward(self: Array, other: Any) -> Array:
        return _operated(function, other, self) if isinstance(other, _OPERANDS) else NotImplemented

    def in_place(self: Array, other: Any) -> Array:
        if not isinstance(other, _OPERANDS):
            return cast(Array, NotImplemented)
        known(self)
        with suppress(TaskTooLarge):
            _written(self._place, self._place.update, function, ufunc, _place_of(other))
            return self
        self[...] = _operated(function, self, other)  # so it is not read when it is written to
        return self

    forms = {"": forward} if name in _COMPARISONS else {"": forward, "r": backward, "i": in_place}
    for prefix, method in forms.items():
        method.__name__ = f"__{prefix}{name}__"
        method.__qualname__ = f"Array.{method.__name__}"
        setattr(Array, method.__name__, method)


# NumPy's arrays and sequences are refused with the cure.
_OPERANDS = (Array, bool, int, float, complex, np.generic, np.ndarray, list, tuple)
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_BINARY = {  # and its operation for operands of any kind, if that is a universal function
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift", "pow": None, "matmul": None,
}  # fmt: skip
for _name, _op in {**dict.fromkeys(_COMPARISONS), **_BINARY}.items():
    _function = getattr(operator, f"{_name}_" if _name in ("and", "or") else _name)
    _binary(_name, _function, TABLE[_op] if _op else None)
