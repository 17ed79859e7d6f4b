"""Beyond one machine: asyncsched as a scheduler of Dask's (`get`), and a cluster of Dask's as a device."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .compute import get as get
    from .compute import statistics as statistics
    from .compute import using as using
    from .connection import ResultLost as ResultLost
    from .device import DaskDevice as DaskDevice
    from .work import CardOutOfMemory as CardOutOfMemory

_WHEN_USED = {
    "CardOutOfMemory": ".work",
    "DaskDevice": ".device",
    "ResultLost": ".connection",
    "get": ".compute",
    "statistics": ".compute",
    "using": ".compute",
}

__all__ = list(_WHEN_USED)  # imported when used: Dask takes half a second

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _WHEN_USED:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            found = getattr(import_module(_WHEN_USED[name], __name__), name)
        except ModuleNotFoundError as missing:
            package = str(missing.name).partition(".")[0]
            raise ImportError(
                f'asyncsched.cluster.{name} needs {package}: pip install "asyncsched[cluster]"', name=package
            ) from missing
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return __all__
