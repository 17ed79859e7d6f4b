"""Beyond one machine: asyncsched as a scheduler of Dask's (`get`), and a cluster of Dask's as a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _instead

if TYPE_CHECKING:
    from .compute import get, statistics, using
    from .connection import ResultLost
    from .device import DaskDevice
    from .work import CardOutOfMemory

# Imported when used: Dask takes half a second.
_WHEN_USED = {
    "compute": "get statistics using",
    "connection": "ResultLost",
    "device": "DaskDevice",
    "work": "CardOutOfMemory",
}

__all__ = ["CardOutOfMemory", "DaskDevice", "ResultLost", "get", "statistics", "using"]

_instead.explain_missing(globals(), __name__, {}, when_used=_WHEN_USED, needs=("dask", "cluster"), listed=True)
