"""A device's memory, as far as the ledgers care: which arrays left the scheduler and are still charged."""

from __future__ import annotations

import weakref
from typing import Any, cast

import numpy as np

from .._core.inbox import Inbox
from .._core.refcounts import references
from .._core.scope import Account
from .._core.task import Task, Value
from .guests import call

Array = Any  # NumPy's or CuPy's: both collapse `.base` to the array that owns the memory


class Memory:
    """One device's memory: how its rows run, and its arrays that left the scheduler and are still charged.

    Attributes:
        xp: the array namespace.
        arrays: the array types that are charged when a callable returns them.
    """

    xp: Any
    arrays: tuple[type, ...]

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.escapes: dict[int, Escape] = {}

    def run_row(self, task: Task) -> None:
        """Run a task that is a row of the table, and give its value the result."""
        raise NotImplementedError

    def run_callable(self, task: Task, args: list[Any]) -> Any:
        """Call a user's function in its own context."""
        return task.context.run(call, task.call, args)

    def give(self, block: Any) -> None:
        """Take a buffer back, on any thread."""

    def footprint(self, nbytes: int) -> int:
        """What an array of `nbytes` really takes."""
        return nbytes

    def reclaim(self, value: Value) -> None:
        """Recycle the buffer of a value nobody holds, or, if its array left, charge it until that array is gone."""
        if value.base is not None:
            value.base.escaped |= value.escaped
        if not value.escaped:
            self.give(value.block)
        elif not self._only_here(value) and (owners := _owners(value)):
            for owner, nbytes in owners:
                escape = Escape(owner, _gone)
                escape.memory, escape.account, escape.nbytes = self, value.account, nbytes
                escape.pooled = _pooled(value.block)
                escape.given = weakref.ref(value.array) if isinstance(value.array, self.arrays) else None
                self.escapes[id(escape)] = escape
            return
        if value.charge:
            self.inbox.dropped(value.account, value.charge)

    @staticmethod
    def _only_here(value: Value) -> bool:
        """Whether the array came back already, so that no weak reference is needed.

        Common for small awaited results.
        """
        if value.block is not None or type(value.array) is not np.ndarray or value.array.base is not None:
            return False
        return references([value.array], 0) <= 2  # the value, and the list


class Escape(weakref.ref[Array]):
    """Watches the memory of an array that left the scheduler, and gives its bytes back when it is gone."""

    __slots__ = ("account", "given", "memory", "nbytes", "pooled")
    memory: Memory
    account: Account
    nbytes: int
    pooled: int
    given: weakref.ref[Array] | None

    def visible(self) -> Array | None:
        """The array through which the memory is held, if it is the only one; else the owner, whose holders stay unseen.

        NumPy's arrays do not take part in garbage collection, so nobody can ask who has a view of an array.
        """
        given = self.given() if self.given is not None else None
        lone = references([self()], 0) <= 2  # one view, and the list
        owner = self()
        return given if lone and owner is not None and given is not None and given.base is owner else owner


def _gone(escape: weakref.ref[Array]) -> None:
    escape = cast(Escape, escape)
    memory = escape.memory
    memory.escapes.pop(id(escape), None)
    if escape.pooled:
        memory.give(escape.pooled)
    memory.inbox.dropped(escape.account, escape.nbytes)


def owner_of(array: Array) -> Array:
    """The array that owns the memory. NumPy and CuPy keep such chains short."""
    kind = np.ndarray if isinstance(array, np.ndarray) else type(array)
    while isinstance(array.base, kind):
        array = array.base
    return array


def _owners(value: Value) -> list[tuple[Array, int]]:
    """The arrays that own what a value is charged for, with their bytes."""
    if not value.charge:
        return []
    if isinstance(value.block, tuple):
        return list(value.block)
    return [(owner_of(value.array), value.charge)]


def _pooled(block: Any) -> int:
    """How many live bytes of the pool this is."""
    return block.nbytes if isinstance(block, np.ndarray) else block if isinstance(block, int) else 0
