"""Keywords of NumPy's and PyTorch's that the array API calls otherwise: the TypeError for one names what to write here.

Python itself refuses such a call, before any line of the function runs. So the functions that have axes are wrapped: a
call that is right pays for the wrapper alone (some 0.2 us), a wrong one is looked at. No other function pays anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from types import FunctionType
from typing import Any

# By the name that others give it: the names it may have here.
_OURS = {
    **dict.fromkeys(("axis", "dim", "dims"), ("axis", "axes")),
    **dict.fromkeys(("ddof", "correction"), ("ddof", "correction")),
    "keepdim": ("keepdims",),
}
_TOLD = {ours for names in _OURS.values() for ours in names}


def name_keywords(namespace: dict[str, Any], names: Iterable[str]) -> None:
    """Have those of the functions that take axes name the keyword that was meant."""
    for name in names:
        function = namespace[name]
        if isinstance(function, FunctionType) and not _TOLD.isdisjoint(_parameters(function)):
            namespace[name] = _naming(function)


def _naming(function: FunctionType) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except TypeError as error:
            refused = error.__traceback__
            if refused is not None and refused.tb_next is None:  # no line of the function has run
                cure = _cure(function, args, options)
                if cure:
                    error.args = (f"{error}: use {cure}",)
            raise

    return call


def _cure(function: FunctionType, args: tuple[Any, ...], options: Iterable[str]) -> str:
    known = _parameters(function)
    meant = [ours for name in options if name not in known for ours in _OURS.get(name, ()) if ours in known]
    if len(args) > function.__code__.co_argcount and not meant:  # what NumPy takes by position
        meant = [name for name in known[function.__code__.co_argcount :] if name not in options][:1]
    return ", ".join(f"`{name}=`" for name in meant)


def _parameters(function: FunctionType) -> tuple[str, ...]:
    code = function.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
