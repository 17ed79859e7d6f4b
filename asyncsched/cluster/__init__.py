"""Beyond one machine, by Dask: `DaskDevice`, a cluster as a device; `get`, a scheduler for Dask's collections.

Dask and distributed are the extra `asyncsched[cluster]`. Neither is imported before one of the two is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .device import DaskDevice as DaskDevice

_WHERE = {"get": ".get", "DaskDevice": ".device"}

__all__ = ["DaskDevice"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_WHERE[name], __name__), name)
