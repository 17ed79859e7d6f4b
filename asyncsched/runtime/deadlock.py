"""Who holds the retained bytes, and does everybody who holds some wait?

The search names the holders, in errors and for `explain`. It also judges: does no stuck task find room, even if
everybody who may release bytes does so? That alone proves nothing: see `stall`. Two kinds of holders cannot release
any. One is a pending task that is stuck itself. The other is an asyncio task that only stuck tasks can wake, and that
no timer or thread can end (see `loop_work.bound`). Everybody else may release bytes, and so may holders that were not
found (see `holders`).

An asyncio task can be woken by whoever can reach the future that it waits for. If anybody can, as with a batcher's
queue, the object that answers says who will (`Runtime.answerers`). If the bytes that may come free let any task in, its
awaiter may release more, and so on: then it is no deadlock.

The text that users get of a stall is made here, too: one line in the log, or the text of an error.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from threading import get_ident
from time import thread_time
from typing import Any
from weakref import WeakSet

from .._core.callsite import line_of
from .._core.model import DONE, LAUNCHED, PENDING, Account, Task, Value
from .holders import Owner, Walk, awaited_by, where_it_waits
from .loop_work import bound
from .runtime import Runtime

# Seconds for a search that somebody asks for, during which the event loop stands still. Time of its thread: the clock
# would count other programs, too.
BUDGET = 0.25
_VAST = 12_000_000  # blocks of memory; to list the objects in more of them takes too long
_SHOWN = 8
_LOOKED_UP = 500  # results whose holders are named, those of the most bytes
_ASKED = 200  # tasks that are asked what they hold, in a certain deadlock
_HOLDERS_SHOWN = 3


@dataclass
class Finding:
    """The result of an investigation for one account.

    Attributes:
        deadlock: no stuck task will ever be let in, unless somebody ends a task from outside.
        lines: the holders of the bytes.
        queued: how many of the bytes lie in asyncio queues.
        reserved: whether open scopes reserve some of the bytes.
        caller: the future of the last task that keeps a reserve while others answer it, as the runners
            of a batcher do. To fail it is better than to fail the stuck task: the bytes that it releases may let the
            others be answered.
        waiting: the asyncio tasks that only stuck tasks can wake.
    """

    deadlock: bool = False
    lines: list[str] = field(default_factory=list)
    queued: int = 0
    reserved: bool = False
    caller: asyncio.Future[Any] | None = None
    waiting: Collection[asyncio.Task[Any]] = ()


@dataclass
class Held:
    """Bytes of an account, and who holds them: those who refer to the object of this number in the walk, or the asyncio
    task that owns a scope. Without either, nobody knows."""

    account: Account
    nbytes: int
    place: str
    number: int = -1
    owner: asyncio.Task[Any] | None = None


def investigate(
    runtime: Runtime, stuck: Collection[Account], budget: float, *, certain: bool = False, thread: int = 0
) -> dict[Account, Finding]:
    """Find the holders of the accounts' bytes, and whether all of them wait.

    What tasks in flight hold counts with their charges, and is not searched for.

    Args:
        budget: the most seconds to search. What was not reached by then counts as held outside.
        certain: it is known that nobody can go on. So nothing is judged, and not all tasks are asked what they hold.
        thread: the number of the loop's thread; 0 for this one, on which nothing else runs until the search ends.
    """
    assert runtime.loop is not None
    case = _Case(runtime, stuck, thread_time() + budget, _ASKED if certain else None)
    deadlock = not certain and case.judge(bound(runtime.loop, thread or get_ident()))
    return {account: case.told(account, deadlock) for account in stuck}


class _Case:
    """The findings of a search, and the conclusions from them.

    Attributes:
        waiting: the asyncio tasks that only stuck tasks can wake.
    """

    def __init__(self, runtime: Runtime, accounts: Collection[Account], deadline: float, most: int | None) -> None:
        # For each future, by identity, the tasks that will set it; and the futures whose waiters keep their bytes
        # until then
        answerers = list(runtime.answerers)
        self._answered = {future: those for one in answerers for future, those in one.answered_by().items()}
        self._bound = set[int]().union(*[one.bound() for one in answerers])
        parked = [one for future, one in list(runtime.parked.items()) if not future.done()]
        self._parked = {waiter: [task for task in those if task.state < DONE] for waiter, those in parked if waiter}
        self._unfinished = runtime.engine.root.unfinished()
        self.waiting = asyncio.all_tasks(runtime.loop)
        things, self._held = _charged(runtime, accounts)
        asked = sorted(self.waiting, key=self._parked.__contains__)
        self._walk = Walk(things, asked[:most], self._unfinished[:most], deadline)
        self._unknown = Counter({account: account.used for account in accounts})
        for one in self._held:
            self._unknown[one.account] -= one.nbytes
        for task in self._unfinished:
            if task.state == LAUNCHED:
                self._unknown[task.scope.account.open] -= task.cost

    def judge(self, ended: Collection[asyncio.Task[Any]]) -> bool:
        """Whether this is a deadlock: nobody goes on but the tasks in `ended`, which may end at any time, and not even
        the bytes that these release let a pending task in."""
        found = set[int]()
        self._awaited = {task: awaited_by(task) for task in self.waiting.difference(ended)}
        pending = [task for task in self._unfinished if task.state == PENDING]
        awaited = self._awaited.items()
        self.waiting = {one for one, future in awaited if one in self._parked or (future and not future.done())}
        while True:
            stay = self.waiting
            self._walk.spread(found, {*stay, *pending})
            self.waiting = {task for task in stay if self._stays(task, stay, found)}
            if self.waiting == stay:
                break
        # Below zero, something was counted twice: then it is not known how many bytes may come free
        free = {account: nbytes if nbytes >= 0 else inf for account, nbytes in self._unknown.items()}
        for one in self._held:
            if one.number in found if one.number >= 0 else one.owner not in self.waiting:
                free[one.account] += one.nbytes
        return not any(_finds_room(task, free) for task in pending)

    def _stays(self, waiter: asyncio.Task[Any], others: set[asyncio.Task[Any]], found: set[int]) -> bool:
        """Whether only stuck tasks, or asyncio tasks in `others`, can wake a waiter."""
        if (tasks := self._parked.get(waiter)) is not None:
            return bool(tasks) and all(task.state == PENDING for task in tasks)
        awaited = self._awaited[waiter]
        wakers = {awaited} if isinstance(awaited, asyncio.Task) else self._answered.get(id(awaited))
        return wakers <= others if wakers else not self._walk.reaches(awaited, found)

    def last_caller(self, account: Account) -> asyncio.Future[Any] | None:
        """The future of the last task that keeps a reserve while others answer it, and that may release the reserve."""
        owners = [one.owner for one in self._held if one.account is account]
        callers = [awaited_by(owner) for owner in owners if owner is not None and owner in self.waiting]
        return next((one for one in reversed(callers) if id(one) in self._answered.keys() - self._bound), None)

    def told(self, account: Account, deadlock: bool) -> Finding:
        """What was found for an account."""
        finding = Finding(deadlock, caller=self.last_caller(account), waiting=WeakSet(self.waiting))
        mine = [one for one in self._held if one.account is account]
        mine.sort(key=lambda one: (-one.nbytes, not self._walk.referring(one.number)))
        parts = list[tuple[int, str]]()
        for one in mine[:_LOOKED_UP]:
            text, queued = self._holders(one)
            parts.append((one.nbytes, f"{one.place}: held {text}"))
            finding.queued += one.nbytes * queued
        finding.reserved = any(one.owner is not None for one in mine)
        total = self._unknown[account] + sum([one.nbytes for one in mine])
        finding.lines = listed(parts, total, "in further results, reserved by open scopes, or not found")
        return finding

    def _holders(self, one: Held) -> tuple[str, bool]:
        """The holders of bytes, in words, those that may go on first; and whether the bytes lie in a queue."""
        found, others, queued = dict[Owner, str](), one.owner is None, False
        if one.number >= 0:
            found, others, queued = self._walk.holders(one.number)
        elif one.owner is not None:
            found[one.owner] = where_it_waits(one.owner)
        owners = sorted(found, key=lambda owner: (isinstance(owner, Task), owner in self.waiting))
        texts = ["where nobody looked"] * others
        for owner in owners[:_HOLDERS_SHOWN]:
            free = isinstance(owner, asyncio.Task) and owner not in self.waiting
            texts.append(f"by {found[owner]}{', and may go on' * free}")
        if len(owners) > _HOLDERS_SHOWN:
            texts.append(f"by {len(owners) - _HOLDERS_SHOWN:,} more")
        return ", and ".join(texts), queued


def _finds_room(task: Task, free: Mapping[Account, float]) -> bool:
    """Whether a pending task is let in once the bytes in `free` are free, too."""
    account = task.scope.account
    lacks = account.used + task.cost - (account.limit or 0)
    return not task.blockers and (account.has_room(task) or lacks <= free.get(account, inf))


def _charged(runtime: Runtime, accounts: Collection[Account]) -> tuple[list[Any], list[Held]]:
    """What is charged to accounts: the objects whose holders are wanted (values, and arrays that left), and a
    description of each charge."""
    everything = gc.get_objects() if sys.getallocatedblocks() < _VAST else []
    things: list[Any] = [v for v in everything if type(v) is Value and v.charge and v.account.open in accounts]
    held = [Held(v.account.open, v.charge, f"created at {line_of(v.site)}", n) for n, v in enumerate(things)]
    for one, array in known(runtime, accounts):
        if array is not None:
            one.number = len(things)
            things.append(array)
        held.append(one)
    return things, held


def known(runtime: Runtime, accounts: Collection[Account]) -> Iterator[tuple[Held, Any]]:
    """What is known without a search: the reserves of open scopes, and arrays that left, each with the object that
    others hold."""
    for scope in runtime.engine.root.tree():
        if (account := scope.account_around) is not None and account in accounts:
            owner = scope.entered_by() if scope.entered_by else None
            yield Held(account, scope.reserve, f"reserved by scope {scope.name!r}", owner=owner), None
    for device in runtime.devices:
        for escape in list(device.memory.escapes.values()):
            if (account := escape.account.open) in accounts:
                place = f"in awaited arrays, created at {line_of(escape.site)}"
                yield Held(account, escape.charge, place), escape.visible()


def listed(parts: Iterable[tuple[int, str]], total: int, rest: str) -> list[str]:
    """Lines for parts, each with its bytes, the largest first. `rest` says where the other bytes of `total` are."""
    counts = Counter(parts).items()
    sizes = sorted([(-n * nbytes, f"{n:,} x " * (n > 1) + f"{nbytes:,} bytes {text}") for (nbytes, text), n in counts])
    left = total + sum([size for size, _ in sizes[:_SHOWN]])
    return [line for _, line in sizes[:_SHOWN]] + [f"{left:,} bytes {rest}"] * (left > 0)


def line_told(runtime: Runtime, task: Task, seconds: float, why: str) -> str:
    """What the ledger knows of a stall, in one line."""
    known_to_it = "; ".join(known_of(runtime, task.scope.account))
    return f"for {seconds:.3g} s {_stuck(task)} ({known_to_it}); but {why}. `s.explain()` searches for who holds them"


def text_told(task: Task, finding: Finding, needed: int) -> str:
    """Why a task is stuck, who holds the bytes, and the cure: a limit of so many bytes."""
    if finding.queued:
        cure = (
            "give each side bytes of its own, by `async with` around its loop: the consumer"
            f" s.scope(reserve={needed - finding.queued}), for what is held outside the queue and what waits; the"
            " producer s.scope(reserve=...), which bounds what is in the queue; together at most the limit"
        )
    # Names no limit: with a higher one, more scopes that reserve may come in first
    elif finding.reserved:
        cure = (
            "drop results sooner, take fewer at a time, reserve less at a time, or reserve also for waiting"
            " tasks (`Batcher(reserve=)` for a batch, `Stepper(scheduler=scope)` for steps), or raise the limit"
        )
    else:
        cure = (
            "drop results sooner, take fewer at a time, reserve with s.scope(reserve=...), or raise the limit"
            f" to {needed:,} bytes, which would have been enough for all waiting tasks"
        )
    return "\n".join([_stuck(task), *[f"  {holder}" for holder in finding.lines], f"cure: {cure}"])


def _stuck(task: Task) -> str:
    account, others = task.scope.account, task.scope.account.pending - 1
    more = f", and {others:,} more task{'s wait' if others > 1 else ' waits'}" if others else ""
    return (
        f"{task.name} (submitted at {line_of(task.site)}) needs {task.cost:,} bytes, and {account.used:,} of the"
        f" {account.limit:,} allowed are held; nothing in flight will free any{more}"
    )


def known_of(runtime: Runtime, account: Account) -> list[str]:
    """What the ledger knows of the holders of an account's bytes, without a search."""
    parts = [(one.nbytes, one.place) for one, _ in known(runtime, [account])]
    return listed(parts, account.used, f"in results{' and tasks in flight' if account.in_flight else ''}")
