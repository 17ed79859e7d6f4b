"""The operators and methods of `cupy.ndarray` that are functions with the array first, and what gives a number."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from .arrays import ndarray
from .functions import dispatch, function

_METHODS = (
    "all any argmax argmin argsort argpartition choose clip conj conjugate cumprod cumsum diagonal dot max mean min"
    " nonzero prod ptp put ravel repeat round searchsorted squeeze std sum swapaxes take trace transpose var"
)
# Special methods, without their underscores, and the functions that they call.
_BINARY = (
    "add:add sub:subtract mul:multiply truediv:divide floordiv:floor_divide mod:remainder pow:power matmul:matmul"
    " and:bitwise_and or:bitwise_or xor:bitwise_xor lshift:left_shift rshift:right_shift divmod:divmod"
)
_COMPARISONS = "eq:equal ne:not_equal lt:less le:less_equal gt:greater ge:greater_equal"
_UNARY = "neg:negative pos:positive abs:absolute invert:invert"


def add_methods() -> None:
    """Give `ndarray` all of them."""
    for name in _METHODS.split():
        setattr(ndarray, name, _method(name))
    for convert in (bool, int, float, complex, index, repr):
        setattr(ndarray, f"__{convert.__name__}__", lambda self, convert=convert: convert(self.get()))
    for table, forms in ((_BINARY, "_ri"), (_COMPARISONS, "_"), (_UNARY, "_")):
        for name, ufunc in [pair.split(":") for pair in table.split()]:
            for form in forms:
                setattr(ndarray, f"__{form.strip('_')}{name}__", _operator(ufunc, form))


def _method(name: str) -> Any:
    def call(self: ndarray, *args: Any, **options: Any) -> Any:
        called = function(name) if hasattr(np, name) else None
        if called is None or name in ("conj", "conjugate", "put"):
            return dispatch(name, getattr(np.ndarray, name), (self, *args), options)
        if name == "transpose" and args:
            args = (args if isinstance(args[0], int) else args[0],)
        return called(self, *args, **options)

    return call


def _operator(ufunc: str, form: str) -> Any:
    def plain(self: ndarray, *other: Any) -> Any:
        return function(ufunc)(self, *other)

    def reflected(self: ndarray, other: Any) -> Any:
        return function(ufunc)(other, self)

    def in_place(self: ndarray, other: Any) -> Any:
        return function(ufunc)(self, other, out=self)

    return {"_": plain, "r": reflected, "i": in_place}[form]
