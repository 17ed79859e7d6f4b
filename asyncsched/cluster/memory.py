"""The object in this process for an array on a worker; and the memory of the device, for the rooms below."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from .._core.completions import Completions
from .._core.model import Value
from ..devices.memory import Memory
from ..ops.meta import Meta
from .connection import Call
from .work import Item, Step

CARDS_GRANULE = 512  # bytes: CuPy's pool gives blocks of multiples of it


class Remote:
    """A result on a worker. It stays there while this is held: for Dask the future of its call is the holder.

    A task's value has one from its launch on, as its `block`, so that others can be sent to Dask before the result is
    there. Once it is there, this is the value's `array`, too.

    Attributes:
        call: the call for Dask, once it is submitted.
        number: of the work in the call that makes this.
        views: the steps from Dask's result to this value, which may be a view of it.
        home: the worker where it is, or will be, as far as known: Dask may have moved it.
        nbytes: of Dask's result.
        depth: the length of the chain of results that Dask would compute again, if all were lost.
        form: with all lengths, once a result is there whose shape depends on data.
        sent: set when others may read it: `call` is there, or never will be.
        over: set when its task has ended.
    """

    __slots__ = ("call", "depth", "form", "home", "nbytes", "number", "over", "sent", "views")

    def __init__(self, home: Any) -> None:
        self.home: Any = home
        self.call: Call | None = None
        self.number: int = 0
        self.views: tuple[Step | Item, ...] = ()
        self.nbytes: int = 0
        self.depth: int = 0
        self.form: Meta | None = None
        self.sent: asyncio.Event = asyncio.Event()
        self.over: asyncio.Event = asyncio.Event()

    @property
    def kept(self) -> bool:
        """Whether it stays on the worker: if not, only the next work of its call reads it."""
        return self.call is None or self.call.small or self.number == self.call.last

    def become(self, other: Remote, step: Step) -> None:
        """Become a view of another result."""
        self.call, self.number, self.home = other.call, other.number, other.home
        self.nbytes, self.depth = other.nbytes, other.depth
        self.views = (*other.views, step)


def standing(value: Value) -> Any:
    """The object of a cluster's value: a `Remote`; or the array, if that is here."""
    return value.block if value.array is None else value.array


class DaskMemory(Memory):
    """The memory of a cluster's workers. No array of it ever escapes, since arrays leave as copies."""

    xp: Any = np
    arrays: tuple[type, ...] = (Remote,)

    def __init__(self, completions: Completions, granule: int) -> None:
        super().__init__(completions)
        self.granule = granule

    def reclaim(self, value: Value) -> None:
        value.array = value.block = None  # on any thread, since a future tells the client's loop that it is dropped
        if value.charge:
            self.completions.dropped(value)
