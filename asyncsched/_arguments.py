"""Checks of arguments, at the line that passed them; and numbers as text for people, or sizes from text."""

from __future__ import annotations

import importlib.util
import inspect
import pickle
import re
import sys
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from types import FunctionType, MethodType
from typing import Any, Final

import numpy as np

_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_NUMBERS = {bool, int, float, complex}
_REAL = (int, float, np.integer, np.floating)
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def check_int(name: str, value: object, least: int = 1, *, none: str = "") -> None:
    """Raise unless `value` is an int of at least `least`, or None if that is allowed: `none` says what it means."""
    if none and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int{' or None' if none else ''}, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}{_instead(none)}")


def check_number(name: str, value: Any, unit: str = "", *, zero: bool = False, none: str = "") -> Any:
    """Raise unless `value` is finite and above 0 (or 0 if `zero`), or None if allowed: `none` says what it means.

    Returns it as Python's own: the sum of a time and NumPy's float32 is a float32, which is no good as a time.
    """
    if none and value is None:
        return None
    is_number = isinstance(value, _REAL) and not isinstance(value, bool)
    if is_number and 0 <= value < inf and (zero or value != 0):
        return value.item() if isinstance(value, np.generic) else value
    what = f"number of {unit}" if unit else "number"
    if not is_number:
        raise TypeError(f"{name} must be a {what}{' or None' if none else ''}, not {type(value).__name__}")
    least = "of at least 0" if zero else "above 0"
    raise ValueError(f"{name} must be a finite {what} {least}, not {value!r}{_instead(none)}")


def parse_bytes(size: int | str | np.integer, name: str = "size", *, none: str = "") -> int:
    """`size` in bytes: an int, or text such as "256 MiB", "1.5 GB". `none` says what None means, where that is allowed.

    Raises:
        ValueError: if it is neither, not positive, or of an unknown unit.
        TypeError: if it is of another type.
    """
    if isinstance(size, np.integer):  # for example the product of a shape
        size = int(size)
    if isinstance(size, bool) or not isinstance(size, int | str):
        raise TypeError(f'{name} is an int of bytes or text such as "256 MiB", not {type(size).__name__}')
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        unit = _UNITS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            raise ValueError(f'{name}={size!r} is no size: use an int of bytes or text such as "256 MiB" or "1.5 GB"')
        size = int(float(match[1]) * unit)
    if size <= 0:
        raise ValueError(f"{name} must be positive, not {size}{_instead(none)}")
    return size


def check_state(state: object) -> None:
    """Raise TypeError unless this is a dict, as states are."""
    if not isinstance(state, Mapping):
        raise TypeError(
            f"a state is a dict, as from `state_dict()` or `await asc.load(path)`, not {type(state).__name__}"
        )


def is_coroutine_function(fn: Any) -> bool:
    """Whether calling `fn` makes a coroutine: a coroutine function, or an object whose class has such a `__call__`."""
    # The same question as `inspect` asks, without the marks that it knows
    if type(fn) is FunctionType and not vars(fn):
        return bool(fn.__code__.co_flags & inspect.CO_COROUTINE)
    return _is(inspect.iscoroutinefunction, fn)


def is_generator_function(fn: Any) -> bool:
    """Whether calling `fn` makes a generator."""
    return _is(inspect.isgeneratorfunction, fn)


def is_async_generator_function(fn: Any) -> bool:
    """Whether calling `fn` makes an async generator."""
    return _is(inspect.isasyncgenfunction, fn)


def _is(kind: Callable[[Any], bool], fn: Any) -> bool:
    while isinstance(fn, partial):
        fn = fn.func
    return kind(fn) or kind(type(fn).__call__)


def check_plain(name: str, fn: Any) -> None:
    """Raise for a function that gives a coroutine or a generator when it is called, where its value is used at once."""
    if not callable(fn):
        return
    if is_coroutine_function(fn) or is_generator_function(fn) or is_async_generator_function(fn):
        raise TypeError(
            f"{name} must be a plain function, since its value is used at once: {label_of(fn)} gives a coroutine or a"
            " generator"
        )


def format_bytes(nbytes: float) -> str:
    """Bytes for people: text that `parse_bytes` takes, except for rounding."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if round(abs(nbytes) / scale * 1024, 1) >= 1024:  # otherwise it would be 1024.0 of the next smaller unit
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes:.0f} B"


def format_seconds(seconds: float) -> str:
    """Seconds for people: three digits, in a suitable unit."""
    size = abs(seconds) / 0.9995  # a value that rounds to 1,000 of a unit is 1 of the next
    unit, scale = ("s", 1.0) if size >= 1 else ("ms", 1e3) if size >= 1e-3 else ("us", 1e6)
    return f"{format_number(seconds * scale)} {unit}"


def format_number(value: float) -> str:
    """A measured number for people: at least three digits, and no more if it has a fraction."""
    # Zero has no sign.
    return f"{value:,.0f}" if 100 <= abs(value) < 1e15 else f"{value + 0.0:.3g}"


def counted(number: int, what: str) -> str:
    """A number with a noun, for people: "1 task", "1,200 tasks"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def require_package(what: str, package: str, extra: str) -> None:
    """Raise unless a package is installed, without importing it."""
    if sys.modules.get(package) is None and importlib.util.find_spec(package) is None:
        cure = f'pip install "asyncsched[{extra}]"'
        raise ModuleNotFoundError(f"{what} needs the package {package}: {cure}", name=package)


def check_pickles(fn: Callable[[Any], Any], name: str) -> None:
    """Raise unless a function can be sent to another process."""
    try:
        pickle.dumps(fn)
    except Exception as error:
        raise TypeError(
            f"processes need a function that can be pickled: define {name} at the top of a module"
        ) from error


def _instead(none: str) -> str:
    return f": use None for {none}" if none else ""


def called(fn: Callable[..., Any]) -> Callable[..., Any]:
    """What a function calls: a `functools.partial` calls another, and so does a bound method."""
    if isinstance(fn, partial):  # or JAX's own kind
        fn = fn.func
    return fn.__func__ if type(fn) is MethodType else fn


def printable(text: str) -> str:
    """The text with what is no printable character escaped: line ends, terminal codes, marks that turn the direction
    of writing. So a name that somebody else chose stays on its line of a log or a page."""
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() else ascii(c)[1:-1] for c in text])


def label_of(fn: object) -> str:
    """The name of a callable in messages. NumPy's ufuncs have no qualified name before 2.2."""
    return str(getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None) or type(fn).__name__)


TABLE_TO_ROWS: Final = (
    "as by `to_numpy()`, `to_dict('records')` of pandas, `rows()` of polars, `to_pylist()` of Arrow; or tables of some"
    " rows each, in a list"
)


def is_table(thing: Any) -> bool:
    """Whether it is a table as those of pandas, polars or Arrow: its length is that of its rows, and it iterates over
    its columns, or their names."""
    if isinstance(thing, np.ndarray):
        return False
    shape = getattr(thing, "shape", None)
    has_columns = isinstance(shape, tuple) and len(shape) == 2 and hasattr(thing, "columns")
    return has_columns or hasattr(type(thing), "__dataframe__")


def refuse_mask_or_unit(source: Any) -> None:
    """Raise for arrays with a mask or a unit, also in lists: a tensor would drop these."""
    if type(source) is np.ndarray:  # as most
        return
    todo, seen = [source], set()
    for thing in todo:
        kind, own = type(thing), isinstance(thing, np.ndarray)
        if own and hasattr(kind, "mask"):
            raise TypeError("a tensor has no mask: give `a.filled(value)`, and the mask as a tensor of its own")
        said = thing if own else kind  # else the column of a table may have that name
        if hasattr(said, "unit") or hasattr(said, "units"):
            raise TypeError(
                f"a tensor has no unit: give the numbers of this {kind.__name__}, in the unit that you mean"
            )
        if isinstance(thing, list | tuple | deque) and id(thing) not in seen:
            seen.add(id(thing))
            kinds = set(map(type, thing)) - _NUMBERS
            todo += [part for part in thing if type(part) in kinds] if kinds else []
