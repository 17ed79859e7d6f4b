"""Who holds the retained bytes, and does everybody who holds some wait?

The search names the holders, in errors and for `explain`. It also says whether the first stuck task would find no room
even after everybody who may release bytes has done so. That alone proves nothing: see `stall`. Two kinds of holders may
not release any: a pending task that is stuck itself, and an asyncio task that only stuck tasks can ever wake, and no
timer or thread may end (see `loop_work.bound`). All other holders may, and so may those that were not found (see
`holders`).

A holder of the future that an asyncio task waits for can wake it: another task (through `gather`, a task group, an
event), and then the same is asked of that task. If anybody may hold the future, as with a batcher's queue, the object
that answers says so (`Runtime.answerers`).

Released bytes may let other tasks in, whose awaiters may then release more. So the question is repeated until nothing
changes.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache
from itertools import compress
from math import inf
from threading import get_ident
from time import thread_time
from typing import Any

import numpy as np

from .._arguments import counted
from .._core import audit
from .._core.callsite import line_of
from .._core.model import DONE, PENDING, Account, Scope, Task, Value
from .awaiting import all_objects, awaited_by, in_wait_for, steps_of, where_it_waits
from .holders import End, Walk, with_subclasses
from .loop_work import bound
from .runtime import Runtime

# Seconds for a search that somebody asks for, during which the event loop stands still. Time of its thread: the clock
# would count other programs, too.
BUDGET = 0.25
_VAST = 12_000_000  # blocks of memory; to list the objects in more of them takes too long
_AT_A_TIME = 100_000  # objects to look at before the next look at the clock
_MOST_NODES = 2_500  # of the tape; more are not looked up together in advance
_SHOWN = 8
_LOOKED_UP = 500  # results whose holders are searched for in a certain deadlock: most of others are only counted
_HOLDERS_SHOWN = 3
# Kinds of holders. In the list those that may release bytes come first, and of each group those of the most bytes
_FREE, _COROUTINE, _OTHER = range(3)
CHAINED: set[type] = set()  # classes of linked lists, as of the tape's nodes; autograd adds them

Waiters = set["asyncio.Task[Any]"]


@dataclass
class Finding:
    """The result of an investigation for one account.

    Attributes:
        deadlock: the first stuck task will never be let in, unless somebody ends a task from outside.
        lines: the holders of the bytes.
        queued: how many of the bytes lie in asyncio queues.
        reserved: how many of the bytes are reserved by open scopes.
        caller: the future of the last task that keeps a reserve while others answer it, as the runners
            of a batcher do. To fail it is better than to fail the stuck task: the bytes that it releases may let the
            others be answered.
    """

    deadlock: bool = False
    lines: list[str] = field(default_factory=list)
    queued: int = 0
    reserved: int = 0
    caller: asyncio.Future[Any] | None = None


@dataclass
class _Held:
    """Bytes of an account that are held."""

    account: Account
    nbytes: int
    place: str
    ends: list[End] | str = ""
    queued: bool = False  # it lies in an asyncio queue


def investigate(
    runtime: Runtime, stuck: Mapping[Account, Task | None], budget: float, *, certain: bool = False, thread: int = 0
) -> dict[Account, Finding]:
    """Find the holders of the accounts' bytes, and whether all of them wait.

    An account whose task is None is not stuck: its tasks in flight count with their charges, and are not searched for.

    Args:
        budget: the most seconds to search. Objects not found by then count as held outside.
        certain: it is known that nobody can go on. Only some holders are searched for, those of the most bytes.
        thread: the number of the loop's thread; 0 for this one, on which nothing else runs until the search ends.
    """
    assert runtime.loop is not None
    deadline = thread_time() + budget
    vast = sys.getallocatedblocks() > _VAST  # then the holders are not searched for
    kinds: tuple[set[type], ...] = {Value}, with_subclasses(asyncio.Future), CHAINED
    values, futures, chained = [[], [], []] if vast else _objects(deadline, *kinds)
    things, held = _charged(runtime, stuck.keys(), values)
    smaller = sorted(range(len(held)), key=lambda i: held[i].nbytes)[: -_LOOKED_UP if certain else 0]
    for i in sorted(smaller, reverse=True):
        del things[i], held[i]
    between = [*_tape(chained), *_views(things, deadline)]
    values.clear()  # these two lists would count as holders
    chained.clear()
    walk = Walk(runtime.loop, futures, deadline, here=not thread)
    ends = walk.up(things, between)
    for one, found, queued in zip(held, ends, walk.queued, strict=True):
        one.ends, one.queued = found, queued
    reserved = _reserved(runtime, stuck.keys())
    held += reserved
    case = _Case(runtime, walk, stuck.keys(), held)
    if certain:
        waiting, moving, free = asyncio.all_tasks(runtime.loop), set[Task](), dict.fromkeys(stuck, 0.0)
    else:
        waiting, moving, free = case.judged(bound(runtime.loop, thread or get_ident()))
    findings = {}
    for account, first in stuck.items():
        listing: Counter[tuple[int, float, str]] = Counter()
        charged = [one for one in held if one.account is account]
        for one in charged:
            rank, text = _describe_ends(one.ends, waiting, moving)
            listing[rank, one.nbytes, f"{one.nbytes:,} bytes {one.place}: held {text}"] += 1
        if (unknown := case.unknown[account]) > 0:
            why = ": the heap is too large to look for who holds them" if vast else ""
            why = f": {len(smaller):,} results were not looked up" if smaller else why
            listing[_FREE, unknown, f"{unknown:,} bytes are reserved by open scopes, or were not found{why}"] += 1
        findings[account] = finding = Finding(
            lines=_shortened(listing),
            queued=sum([one.nbytes for one in charged if one.queued]),
            reserved=sum([one.nbytes for one in reserved if one.account is account]),
        )
        if first is not None:
            finding.deadlock = not _finds_room(first, free)
            finding.caller = case.last_caller(account, waiting)
    return findings


class _Case:
    """The findings of a search, and the conclusions from them.

    Attributes:
        unknown: for each account, the bytes whose holders nobody knows; below 0 if some were counted twice.
    """

    def __init__(self, runtime: Runtime, walk: Walk, accounts: Iterable[Account], held: list[_Held]) -> None:
        self._root, self._walk = runtime.engine.root, walk
        # The tasks that will set futures, by the identities of these; and those whose waiters then keep their bytes
        answerers = list(runtime.answerers)
        self._answered = {future: tasks for one in answerers for future, tasks in one.answered_by().items()}
        self._bound = set[int]().union(*[one.bound() for one in answerers])
        self._held = held
        self._pending = runtime.engine.admission.tasks()
        self._parked = [
            (waiter, [task for task in tasks if task.state < DONE])
            for future, (waiter, tasks) in list(runtime.parked.items())
            if waiter is not None and not future.done()
        ]
        launched = audit.launched(runtime.engine.root)
        self.unknown: dict[Account, float] = {}
        for account in accounts:
            in_flight = sum([task.cost for task in launched if task.scope.account.open is account])
            self.unknown[account] = account.used - in_flight - sum([h.nbytes for h in held if h.account is account])
        # the least bytes that may come free, whoever waits: `judged` begins from them
        self._lost = {account: nbytes if nbytes >= 0 else inf for account, nbytes in self.unknown.items()}
        self._wakers: dict[asyncio.Task[Any], set[Any]] = {}

    def judged(self, ended: AbstractSet[Any]) -> tuple[Waiters, set[Task], dict[Account, float]]:
        """Judge who is stuck, though the tasks in `ended` may end at any time.

        Returns the asyncio tasks that only stuck tasks can wake; the pending tasks that may be let in; and for each
        account the bytes that may come free.
        """
        free = self._lost
        self._find_wakers(self._waiting(self._moving(free), frozenset()))
        while True:
            moving = self._moving(free)
            waiting = self._waiting(moving, ended)
            before, free = free, self._releasable(waiting, moving)
            if free == before:
                return waiting, moving, free

    def _find_wakers(self, parked: Waiters) -> None:
        """Find the tasks that can wake each holder, and those that can wake these, up to tasks parked here."""
        found = [owner for one in self._held if not isinstance(one.ends, str) for owner, _ in one.ends]
        fresh: Waiters = {owner for owner in found if not isinstance(owner, Task)} - parked
        while fresh:
            self._wakers |= (wakers := self._wakers_of(list(fresh)))
            fresh = {waker for those in wakers.values() for waker in those if isinstance(waker, asyncio.Task)}
            fresh -= parked | self._wakers.keys()

    def _wakers_of(self, tasks: list[asyncio.Task[Any]]) -> dict[asyncio.Task[Any], set[Any]]:
        """For each task the tasks that can wake it; an empty set if somebody unknown can."""
        found: dict[asyncio.Task[Any], set[Any]] = {task: set() for task in tasks}
        on_futures = []
        for task in tasks:
            awaited = awaited_by(task)
            if awaited is not None and not awaited.done():  # otherwise it is about to run
                found[task] = {awaited} if isinstance(awaited, asyncio.Task) else in_wait_for(steps_of(task))
                found[task] |= self._answered.get(id(awaited), set())
                if not found[task]:
                    on_futures.append(task)
            del awaited
        ends = self._walk.up([awaited_by(task) for task in on_futures], weakly=True)
        for task, those in zip(on_futures, ends, strict=True):
            if not isinstance(those, str):
                found[task] = {owner for owner, _ in those if owner is not task}
        return found

    def last_caller(self, account: Account, waiting: Waiters) -> asyncio.Future[Any] | None:
        """The future of the last task that keeps a reserve while others answer it, and that may release the reserve."""
        free = self._answered.keys() - self._bound
        scopes = [scope for _, scope in reserves(self._root, [account]) if scope.entered_by is not None]
        owners = [owner for scope in scopes if (owner := scope.entered_by()) in waiting]
        callers = [future for owner in owners if id(future := awaited_by(owner)) in free]
        return callers[-1] if callers else None

    def _releasable(self, waiting: Waiters, moving: set[Task]) -> dict[Account, float]:
        """The bytes of each account that may come free."""
        free = dict(self._lost)
        for one in self._held:
            found = [] if isinstance(one.ends, str) else one.ends
            if not found or any(_can_proceed(owner, waiting, moving) for owner, _ in found):
                free[one.account] += one.nbytes
        return free

    def _moving(self, free: dict[Account, float]) -> set[Task]:
        """The pending tasks that find room if the bytes in `free` come free, and the tasks that depend on them."""
        todo = [task for task in self._pending if not task.blockers and _finds_room(task, free)]
        found = set(todo)
        while todo:
            fresh = set(todo.pop().dependents) - found
            found |= fresh
            todo += fresh
        return found

    def _waiting(self, moving: set[Task], ended: AbstractSet[Any]) -> Waiters:
        """The asyncio tasks that only stuck tasks can wake: those parked here, and those that only these can wake."""
        parked = {
            waiter
            for waiter, tasks in self._parked
            if waiter not in ended and all(task.state == PENDING and task not in moving for task in tasks)
        }
        wakers = self._wakers
        stuck = parked | (wakers.keys() - ended)
        while free := {task for task in stuck - parked if not wakers[task] or not wakers[task] <= stuck}:
            stuck -= free
        return stuck


def _finds_room(task: Task, free: dict[Account, float]) -> bool:
    """Whether a pending task is let in once the bytes in `free` are free, too."""
    account = task.scope.account
    if account.limit is None or account not in free or (not task.cost and not task.unestimated):
        return True
    return account.used - free[account] + task.cost <= account.limit


def _can_proceed(owner: Any, waiting: Waiters, moving: set[Task]) -> bool:
    return owner not in waiting if isinstance(owner, asyncio.Task) else owner.state != PENDING or owner in moving


def _describe_ends(ends: list[End] | str, waiting: Waiters, moving: set[Task]) -> tuple[int, str]:
    """The holders of an object as text, with the rank of the first that may release it.

    Of several places in one asyncio task, only the most informative is named.
    """
    if not ends:
        return _FREE, "by garbage that is not collected yet"
    if isinstance(ends, str):
        return _FREE, f"outside ({ends})"
    best: dict[asyncio.Task[Any], tuple[int, bool, bool, str]] = {}
    pending: list[Task] = []
    for owner, text in ends:
        if isinstance(owner, Task):
            pending.append(owner)
            continue
        rank = _FREE if owner not in waiting else _COROUTINE if text.startswith("coroutine") else _OTHER
        told = rank, "(an expression)" in text, " of " not in text, f"by {text}{'' if rank else ', and may go on'}"
        best[owner] = min(best.get(owner, told), told)
    found = sorted(best.values())
    if pending:
        rank = _FREE if any(task.state != PENDING or task in moving for task in pending) else _OTHER
        found.append((rank, False, False, _readers(pending)))
    texts = [text for *_, text in found]
    if len(texts) > _HOLDERS_SHOWN:
        texts[_HOLDERS_SHOWN:] = [f"{len(texts) - _HOLDERS_SHOWN:,} more"]
    return min(rank for rank, *_ in found), ", and ".join(texts)


def _readers(pending: list[Task]) -> str:
    first = min(pending, key=lambda task: task.seq)
    others = len(pending) - 1
    more = f" and {counted(others, 'more task')} that {'wait' if others > 1 else 'waits'}" if others else ""
    return f"by the task {first.name!r}, submitted at {line_of(first.site)}{more}"


def _shortened(listing: Counter[tuple[int, float, str]]) -> list[str]:
    """The lines of those that may release bytes, and then of the others: of each those of the most bytes first."""
    groups = [(rank, nbytes * n, line if n == 1 else f"{n:,} x {line}") for (rank, nbytes, line), n in listing.items()]
    groups.sort(key=lambda group: (group[0] != _FREE, -group[1], group))
    shown = [line for *_, line in groups[:_SHOWN]]
    if rest := groups[_SHOWN:]:
        shown.append(f"... and {len(rest):,} more, of {sum([nbytes for _, nbytes, _ in rest]):,} bytes")
    return shown


def _objects(deadline: float, *kinds: set[type]) -> list[list[Any]]:
    """All objects of these classes. Looks for them in one pass, since there may be a million others."""
    wanted = set[type]().union(*kinds)
    found, everything = list[Any](), all_objects()
    for start in range(0, len(everything), _AT_A_TIME):
        if thread_time() > deadline:  # then nobody asks for their holders
            break
        some = everything[start : start + _AT_A_TIME]
        found += compress(some, map(wanted.__contains__, map(type, some)))
    return [[thing for thing in found if type(thing) in those] for those in kinds]


def _charged(runtime: Runtime, accounts: Iterable[Account], values: list[Value]) -> tuple[list[Any], list[_Held]]:
    """The objects charged to accounts (values, and owners of arrays that left), each with its description."""
    things = list[Any]()
    held = list[_Held]()
    line = cache(line_of)
    for v in values:
        if v.charge and (account := v.account.open) in accounts:
            things.append(v)
            held.append(_Held(account, v.charge, f"created at {line(v.site)}"))
    for device in runtime.devices:
        for escape in list(device.memory.escapes.values()):
            if (account := escape.account.open) in accounts and (array := escape.visible()) is not None:
                things.append(array)
                held.append(_Held(account, escape.charge, f"in an awaited array, created at {line(escape.site)}"))
    return things, held


def reserves(root: Scope, accounts: Iterable[Account]) -> Iterator[tuple[Account, Scope]]:
    """The open scopes whose reserve is charged to one of these accounts."""
    for scope in root.tree():
        if (account := scope.account_around) is not None and account in accounts:
            yield account, scope


def _reserved(runtime: Runtime, accounts: Iterable[Account]) -> list[_Held]:
    """The reserves of open scopes: held by the tasks that will leave the scopes."""
    return [
        _Held(account, scope.reserve, f"reserved by scope {scope.name!r}", [(owner, where_it_waits(owner))])
        for account, scope in reserves(runtime.engine.root, accounts)
        if scope.entered_by is not None and (owner := scope.entered_by()) is not None and not owner.done()
    ]


def _views(things: list[Any], deadline: float) -> list[Any]:
    """The views of the arrays among these. Views take no part in garbage collection: their holders lead to them."""
    kinds, keys = with_subclasses(np.ndarray), {id(thing) for thing in things if isinstance(thing, np.ndarray)}
    found: dict[int, Any] = {}
    everything = all_objects() if keys else []
    for start in range(0, len(everything), _AT_A_TIME):
        if thread_time() > deadline:
            break
        parts = gc.get_referents(*everything[start : start + _AT_A_TIME])
        arrays = compress(parts, map(kinds.__contains__, map(type, parts)))
        found |= {id(array): array for array in arrays if id(array.base) in keys and id(array) not in keys}
    return list(found.values())


def _tape(nodes: list[Any]) -> list[Any]:
    """Members of long linked lists. Found one by one, each would take a scan of the heap."""
    # without the empty tuple, a singleton: a search for its referrers would use up the budget
    tuples = {id(part): part for node in nodes for part in gc.get_referents(node) if type(part) is tuple and part}
    found = [*nodes, *tuples.values()]
    return found if len(found) < _MOST_NODES else []
