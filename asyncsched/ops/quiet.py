"""NumPy computes without warnings, in a way that finalisers cannot disturb."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


def quietly(function: Callable[..., T], *args: Any) -> T:
    """Call a function in a context of its own, where NumPy's error state is quiet.

    `np.errstate` would set a variable in the caller's context, and take it out again. Before Python 3.12 the collector
    may run within either. A finaliser that sets a variable then frees the table that is being read, and one that only
    computes with NumPy has it remember a state that is freed next: the interpreter crashes. So what may run on a user's
    thread, or in a finaliser, sets none in a context that others use.
    """
    return Context().run(_quiet, function, *args)


def _quiet(function: Callable[..., T], *args: Any) -> T:
    np.seterr(all="ignore")
    return function(*args)
