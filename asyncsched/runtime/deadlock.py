"""Who holds the retained bytes: a walk from each value up through whatever refers to it.

Theory of operation. `gc.get_referrers` gives the objects that refer to an object; CPython's reference count says how
many references there are. When the references found account for the whole count, no holder is unseen. The walk goes up
through containers and ends at coroutines (mapped to their asyncio tasks), or outside: at a module, at anything unseen
(a running frame shows none of its references), or not understood. Outside is the safe answer: it only means that
nobody is accused.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import types
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from .._core.callsite import line_of
from .._core.model import DONE, PENDING, Account, Task, Value
from .._core.refcounts import references
from .runtime import Runtime

BUDGET = 0.5  # seconds for the first investigation of a stall, during which the event loop stands still
MOST_BUDGET = 4.0  # for later ones, which may take longer and longer: each look for referrers scans the whole heap
_MOST_OBJECTS = 5_000
_SHOWN = 8
CHAINED: set[type] = set()  # classes of what holds the next of its kind, and that the next: the tape adds its nodes
_SUSPENDED = (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType)


@dataclass
class Finding:
    """What an investigation found."""

    deadlock: bool = False
    lines: list[str] = field(default_factory=list)


End = tuple["asyncio.Task[Any] | Task", str]


class _Node:
    """An object on the way up."""

    __slots__ = ("ends", "found", "thing", "trouble", "up")

    def __init__(self, thing: Any) -> None:
        self.thing = thing
        self.found = 0  # references to it that were found
        self.up: list[_Node] = []  # what refers to it, and is walked further
        self.ends: list[End] = []  # the tasks that refer to it
        self.trouble: str | None = None  # why more may hold it


class _Walk:
    """Finds the tasks that objects are held by.

    Walks up level by level, since each look for referrers scans the heap.
    """

    def __init__(self, runtime: Runtime, deadline: float) -> None:
        assert runtime.loop is not None
        self.deadline = deadline
        self.ours: set[int] = set()  # containers of the investigation itself, alive throughout
        self.owners = _owners(asyncio.all_tasks(runtime.loop))
        # Python 3.11's `gc.get_referrers` overlooks what a C task holds by way of being a future: callbacks, exception.
        self.tasks_holding: dict[int, set[asyncio.Task[Any]]] = defaultdict(set)
        for task in [thing for thing in gc.get_objects() if type(thing) is asyncio.Task]:
            for held in gc.get_referents(task):
                self.tasks_holding[id(held)].add(task)

    def up(self, starts: list[Any], between: Sequence[Any] = ()) -> list[list[End] | str]:
        """For each object the tasks that hold it, with descriptions, or why more may.

        `between` are objects through which these may be held: looked at with them, they cost no look of their own.
        References to the objects from containers in `ours` are known; the caller has none in variables.
        """
        nodes = {id(start): _Node(start) for start in starts}
        first = list(nodes.values())
        nodes |= {id(thing): _Node(thing) for thing in between if id(thing) not in nodes}
        level = list(nodes.values())
        self.ours |= {id(starts), id(between)}
        while level:
            if perf_counter() > self.deadline or len(nodes) > _MOST_OBJECTS:
                for node in level:
                    node.trouble = "the search ran out of its budget"
                break
            level = self._climb(level, nodes)
        return [_summary(node) for node in first]

    def _climb(self, level: list[_Node], nodes: dict[int, _Node]) -> list[_Node]:
        """Find what refers to each node of a level. Returns the next level."""
        above: list[_Node] = []
        at = {id(node.thing): node for node in level}
        referrers = gc.get_referrers(*[node.thing for node in level])
        listed = _tasks(referrers)
        for node in level:
            overlooked = self.tasks_holding.get(id(node.thing), set()) - listed
            referrers += overlooked
            listed |= overlooked
        # From Python 3.13 on `get_referrers` finds the tuple of its own arguments, held by our list alone. It is gone
        # when references are counted below: counted as found, it would make up for a holder that stays unseen.
        passing = {i for i in range(len(referrers)) if type(referrers[i]) is tuple and references(referrers, i) <= 1}
        for i, referrer in enumerate(referrers):
            if type(referrer) is _Node or i in passing:
                continue
            below: dict[int, _Node] = {}
            for thing in gc.get_referents(referrer):
                if (node := at.get(id(thing))) is not None:  # type: ignore[assignment]
                    node.found += 1
                    below[id(thing)] = node
            del thing
            if id(referrer) not in self.ours:
                for node in below.values():
                    self._connect(node, referrer, nodes, above)
        # One of the level may refer to another of it: then it is held from here, too.
        referrers.clear()
        referrer = None
        for node in level:
            if references([node.thing], 0) > node.found + 2:  # the node, and the list
                node.trouble = node.trouble or f"something unseen holds {_kind(node.thing)}"
        return above

    def _connect(self, node: _Node, referrer: Any, nodes: dict[int, _Node], above: list[_Node]) -> None:
        """Note that `referrer` refers to a node: an end of the walk, a trouble, or another node."""
        if isinstance(referrer, Task) and referrer.state < DONE:
            node.ends.append((referrer, f"the task {referrer.name!r}, submitted at {line_of(referrer.site)}"))
            if referrer.state != PENDING:
                node.trouble = f"{referrer!r} still uses it"
        elif isinstance(referrer, asyncio.Task) and not referrer.done():
            node.ends.append((referrer, f"task {referrer.get_name()!r}"))
        elif isinstance(referrer, _SUSPENDED):
            owner = self.owners.get(id(referrer))
            if owner is None:
                node.trouble = f"{_name(referrer)} holds it, which no task awaits"
            else:
                node.ends.append((owner, _describe(owner, referrer, node.thing)))
        elif isinstance(referrer, types.ModuleType | type) or _is_namespace(referrer):
            node.trouble = f"{_kind(referrer)} holds it"
        elif (known := nodes.get(id(referrer))) is not None:
            node.up.append(known)
        else:
            higher = nodes[id(referrer)] = _Node(referrer)
            above.append(higher)
            node.up.append(higher)


def _summary(start: _Node) -> list[End] | str:
    """Every end above a node, or the first trouble."""
    ends: list[End] = []
    seen, todo = {start}, [start]
    while todo:
        node = todo.pop()
        if node.trouble is not None:
            return node.trouble
        ends += node.ends
        fresh = [higher for higher in node.up if higher not in seen]
        seen.update(fresh)
        todo += fresh
    return ends


def investigate(runtime: Runtime, account: Account, stuck_accounts: Iterable[Account], budget: float) -> Finding:
    """Find who holds the bytes of a stuck account, and whether they all wait for stuck tasks themselves.

    `budget` is the most seconds to search; what was not found by then counts as held outside.
    """
    finding = Finding()
    walk = _Walk(runtime, perf_counter() + budget)
    things, costs = _held(runtime, account)
    waiting = _Waiting(walk, _parked(runtime, set(stuck_accounts)))
    inside = bool(things)
    for (nbytes, place), ends in zip(costs, walk.up(things, _tape()), strict=True):
        if isinstance(ends, str):
            inside = False
            finding.lines.append(f"{nbytes:,} bytes {place}: held outside ({ends})")
            continue
        inside = inside and bool(ends)
        for owner, text in ends:
            finding.lines.append(f"{nbytes:,} bytes {place}: held by {text}")
            inside = inside and (isinstance(owner, Task) or waiting.stuck(owner))
    missing = account.used - sum(nbytes for nbytes, _ in costs)
    if missing:
        inside = False
        finding.lines.append(f"{missing:,} bytes are reserved by open scopes, or were not found")
    finding.deadlock = inside
    if len(finding.lines) > _SHOWN:
        finding.lines[_SHOWN:] = [f"... and {len(finding.lines) - _SHOWN} more"]
    return finding


def _held(runtime: Runtime, account: Account) -> tuple[list[Any], list[tuple[int, str]]]:
    """What is charged to the account: values, and the owners of arrays that left.

    With their bytes and where they are from.
    """
    things: list[Any] = [v for v in gc.get_objects() if type(v) is Value and v.charge and v.account.open is account]
    costs = [(v.charge, f"created at {line_of(v.site)}") for v in things]
    for device in runtime.devices:
        for escape in list(device.memory.escapes.values()):
            if escape.account.open is account and (array := escape.visible()) is not None:
                things.append(array)
                costs.append((escape.nbytes, "in an awaited array"))
    return things, costs


def _tape() -> list[Any]:
    """All that stands in long chains, which would take a look at the heap for each link."""
    nodes = [thing for thing in gc.get_objects() if type(thing) in CHAINED]
    # But for the empty tuple, which the whole heap shares: walked up from, it would use up the budget.
    tuples = {id(part): part for node in nodes for part in gc.get_referents(node) if type(part) is tuple and part}
    found = [*nodes, *tuples.values()]
    return found if len(found) < _MOST_OBJECTS // 2 else []


def _parked(runtime: Runtime, accounts: set[Account]) -> set[asyncio.Task[Any]]:
    """The asyncio tasks that wait here for a task that is stuck."""
    return {
        waiter
        for waiter, tasks in runtime.parked.values()
        if waiter is not None and any(_is_stuck(task, accounts) for task in tasks)
    }


def _is_stuck(task: Task, accounts: set[Account]) -> bool:
    seen: set[Task] = set()
    todo = [task]
    while todo:
        task = todo.pop()
        if task in seen:
            continue
        seen.add(task)
        if task.state != PENDING:
            return False
        if not task.blockers:
            if task.scope.account not in accounts:
                return False
            continue
        todo += [v.task for v in task.inputs if v.task is not None and v.task.state == PENDING]
    return True


class _Waiting:
    """Which asyncio tasks wait, directly or through others, for stuck tasks alone."""

    def __init__(self, walk: _Walk, parked: set[asyncio.Task[Any]]) -> None:
        self._walk = walk
        self._known: dict[asyncio.Task[Any], bool] = dict.fromkeys(parked, True)

    def stuck(self, task: asyncio.Task[Any]) -> bool:
        """Whether only stuck tasks could ever wake this one: it awaits them through gather, a task group, a future."""
        if task not in self._known:
            self._known[task] = True  # so that a circle counts as stuck
            self._known[task] = self._wakers_stuck(task)
        return self._known[task]

    def _wakers_stuck(self, task: asyncio.Task[Any]) -> bool:
        futures = [getattr(task, "_fut_waiter", None)]
        if futures[0] is None:
            return False
        if isinstance(futures[0], asyncio.Task):
            return self.stuck(futures[0])
        (ends,) = self._walk.up(futures)
        if isinstance(ends, str):
            return False
        wakers = [owner for owner, _ in ends if owner is not task]
        return bool(wakers) and all(isinstance(waker, asyncio.Task) and self.stuck(waker) for waker in wakers)


def _owners(tasks: Iterable[asyncio.Task[Any]]) -> dict[int, asyncio.Task[Any]]:
    """Every suspended coroutine and generator in the await chains of `tasks`, by id."""
    owners: dict[int, asyncio.Task[Any]] = {}
    for task in tasks:
        todo: list[Any] = [task.get_coro()]
        while todo:
            step = todo.pop()
            if step is None or id(step) in owners:
                continue
            if isinstance(step, _SUSPENDED):
                owners[id(step)] = task
                todo += [getattr(step, name, None) for name in ("cr_await", "gi_yieldfrom", "ag_await")]
            elif type(step).__name__ in (
                "async_generator_asend",
                "async_generator_athrow",
                "coroutine_wrapper",
                "anext_awaitable",
            ):
                todo += gc.get_referents(step)
    return owners


def _describe(owner: asyncio.Task[Any], coroutine: Any, what: Any) -> str:
    frame = _frame(coroutine)
    if frame is None:
        return f"coroutine {_name(coroutine)}"
    variables = frame.f_locals
    names = [name for name, held in variables.items() if held is what]
    if sys.version_info < (3, 13):
        variables.clear()  # a snapshot, which would pin the locals
    variable = f"variable {names[0]!r}" if names else "an expression"
    return (
        f"coroutine {frame.f_code.co_qualname} ({variable}), which waits at {frame.f_code.co_filename}:{frame.f_lineno}"
        f" in task {owner.get_name()!r}"
    )


def _frame(coroutine: Any) -> types.FrameType | None:
    return next(
        (f for name in ("cr_frame", "gi_frame", "ag_frame") if (f := getattr(coroutine, name, None)) is not None), None
    )


def _name(coroutine: Any) -> str:
    return getattr(coroutine, "__qualname__", type(coroutine).__name__)


def _kind(thing: Any) -> str:
    if isinstance(thing, types.ModuleType):
        return f"module {thing.__name__}"
    return f"a {type(thing).__name__}"


def _is_namespace(thing: Any) -> bool:
    return isinstance(thing, dict) and "__name__" in thing and "__spec__" in thing


def _tasks(things: Iterable[Any]) -> set[asyncio.Task[Any]]:
    return {thing for thing in things if isinstance(thing, asyncio.Task)}
