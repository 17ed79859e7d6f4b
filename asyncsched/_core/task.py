"""A task, the value it makes, and the states it passes through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .failure import Failure
    from .placement import Lane
    from .scope import Account, Scope
    from .where import Where

# States, in the order of a task's life. Plain ints: they are compared several times per task.
PENDING: Final = 0
LAUNCHED: Final = 1  # admitted and handed to a stream; the two are one step for every device so far
DONE: Final = 2
FAILED: Final = 3
CANCELLED: Final = 4
STATE_NAMES: Final = ("pending", "launched", "done", "failed", "cancelled")


class Value:
    """What a task makes, or will make. Handles, views and tasks that read it hold it.

    CPython's reference count *is* the count of holders: when it falls to zero, `__del__` posts the bytes back. While
    its task is unfinished the task holds it too; the stream lets go before it posts the completion.
    """

    __slots__ = (
        "account",
        "array",
        "base",
        "block",
        "charge",
        "device",
        "escaped",
        "failure",
        "meta",
        "nbytes",
        "task",
        "where",
    )

    def __init__(self, account: Account, device: Any, meta: Any, task: Task | None = None) -> None:
        self.account = account
        self.device = device
        self.meta = meta  # shape, dtype and cost of the result; opaque here
        self.task = task  # its producer, until found finished
        self.failure: Failure | None = None
        self.array: Any = None  # the result
        self.block: Any = None  # the pool's buffer under it, if any
        self.base: Value | None = None  # the value whose memory this one is a view of
        self.where: Where | None = None  # the line that asked for it, if it was not run inline
        self.nbytes = 0  # bytes of the buffer it owns, or will
        self.charge = 0  # bytes to give back when nobody holds this any more
        self.escaped = False  # the array may be held outside: the buffer is never recycled

    @property
    def done(self) -> bool:
        """Whether the result or a failure is here."""
        return self.failure is not None or self.task is None or self.task.state >= DONE

    @property
    def owner(self) -> Value:
        """The value that owns the memory: itself, or at the end of a chain of views."""
        value = self
        while value.base is not None:
            value = value.base
        return value

    def __del__(self) -> None:
        if self.block is not None or self.escaped:
            self.device.reclaim(self)
        elif self.charge:
            self.array = None  # the memory first, its bytes second: others may be waiting for them on another thread
            account = self.account
            inbox = account.inbox
            inbox.items.append((account, self.charge))
            if inbox.starved:
                inbox.stir()


class Task:
    """One unit of work. It goes once through pending -> launched -> done | failed | cancelled."""

    __slots__ = (
        "account",
        "args",
        "blockers",
        "call",
        "cancelled",
        "context",
        "cost",
        "dependents",
        "event",
        "failure",
        "front",
        "granted",
        "inputs",
        "lane",
        "lanes",
        "name",
        "options",
        "passed",
        "refund",
        "scope",
        "seq",
        "state",
        "value",
        "waiters",
        "where",
    )

    def __init__(
        self,
        scope: Scope,
        account: Account,
        name: str,
        call: Any,
        args: Any,
        options: Any,
        inputs: Sequence[Value],
        lanes: Sequence[Lane],
        cost: int,
        where: Where | None = None,
    ) -> None:
        self.scope = scope
        self.account = account
        self.name = name
        self.call = call  # what to run: opaque here, as are args, options and context
        self.args = args
        self.options = options
        self.context: Any = None
        self.inputs = inputs  # emptied when it ends
        self.lanes = lanes  # the streams it may run on; none for a mere claim of bytes, which takes no slot either
        self.cost = cost  # bytes of output and workspace, granted at admission
        self.refund = 0  # bytes to return at completion: what of `cost` the value did not take over
        self.where = where
        self.value: Value | None = None  # set by whoever makes the value; let go by the stream
        self.seq = 0
        self.state = PENDING
        self.front = False  # queued before the rest of its scope
        self.blockers = 0  # producers that are not launched yet
        self.passed = 0  # times another scope was admitted while this head had no room
        self.dependents: list[Task] | None = None  # submitted while this was unfinished
        self.waiters: list[Callable[[Task], None]] | None = None  # called on the loop's thread when it ends
        self.granted: Callable[[Task], None] | None = None  # called on the loop's thread when it is launched
        self.lane: Lane | None = None  # the stream it was given
        self.event: Any = None
        self.failure: Failure | None = None
        self.cancelled = False  # cancelled after launch: it keeps its slot until it physically ends

    def settled(self) -> bool:
        """Whether awaiting it has an answer: it ended, or was cancelled while it still runs."""
        return self.state >= DONE or self.cancelled

    def __repr__(self) -> str:
        return f"<{self.name} #{self.seq} {STATE_NAMES[self.state]}>"
