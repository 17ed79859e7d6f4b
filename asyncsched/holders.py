"""Who holds the retained bytes: a walk from each value up through whatever refers to it.

Theory of operation. `gc.get_referrers` gives the objects that refer to an object; CPython's reference count says how many
references there are. When the references found account for the whole count, no holder is unseen. The walk goes up through
containers and ends at coroutines (mapped to their asyncio tasks), or outside: at a module, a running frame, anything
unseen, or anything not understood. Outside is the safe answer: it only means that nobody is accused.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import types
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ._core.admission import Account
from ._core.failure import line_of
from ._core.task import PENDING, Task, Value

if TYPE_CHECKING:
    from .driver import Driver

BUDGET = 0.25  # seconds for one investigation
_MOST_OBJECTS = 5_000
_SHOWN = 8
_SUSPENDED = (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType)


@dataclass
class Finding:
    """What an investigation found."""

    deadlock: bool = False
    lines: list[str] = field(default_factory=list)


class Unclear(Exception):
    """The walk met something it does not understand, or ran out of budget."""


class _Walk:
    """Finds the asyncio tasks that an object is held by."""

    def __init__(self, driver: Driver, deadline: float) -> None:
        assert driver.loop is not None
        self.deadline = deadline
        self.owners = _owners(asyncio.all_tasks(driver.loop))
        self.hidden = {id(self.__dict__), id(self.owners)}

    def up(self, start: Any, extra: int) -> list[tuple[asyncio.Task[Any] | Task, Any, Any]]:
        """The ends above `start`: (asyncio task or pending task, coroutine, what it holds). `extra` references are ours.

        Raises:
            Unclear: if anything else may hold it.
        """
        ends: list[tuple[asyncio.Task[Any] | Task, Any, Any]] = []
        seen = {id(start)}
        todo = [(start, extra)]
        keep: list[Any] = [todo, seen, ends]
        hidden = self.hidden | {id(x) for x in keep} | {id(keep)}
        while todo:
            if perf_counter() > self.deadline or len(seen) > _MOST_OBJECTS:
                raise Unclear("the search ran out of its budget")
            pair = todo.pop()
            target, extra = pair
            hidden.add(id(pair))
            referrers = gc.get_referrers(target)
            hidden.add(id(referrers))
            count = sys.getrefcount(target) - extra - 3  # `target`, `pair`, and the argument itself
            for referrer in referrers:
                if id(referrer) in hidden or isinstance(referrer, types.FrameType):
                    continue
                count -= sum(x is target for x in gc.get_referents(referrer))
                if isinstance(referrer, Task):
                    if referrer.state != PENDING:
                        raise Unclear(f"{referrer!r} still uses it")
                    ends.append((referrer, None, target))
                elif isinstance(referrer, asyncio.Task):
                    ends.append((referrer, None, target))
                elif isinstance(referrer, _SUSPENDED):
                    owner = self.owners.get(id(referrer))
                    if owner is None:
                        raise Unclear(f"{_name(referrer)} holds it, which no task awaits")
                    ends.append((owner, referrer, target))
                elif isinstance(referrer, types.ModuleType | type) or _is_namespace(referrer):
                    raise Unclear(f"{_kind(referrer)} holds it")
                elif id(referrer) not in seen:
                    seen.add(id(referrer))
                    todo.append((referrer, 1))  # the list of referrers
            if count > 0:
                raise Unclear(f"something unseen holds {_kind(target)}")
            del referrers, referrer, target, pair
        return ends


def investigate(driver: Driver, account: Account, stuck_accounts: Iterable[Account]) -> Finding:
    """Find who holds the bytes of a stuck account, and whether they all wait for stuck tasks themselves."""
    finding = Finding()
    walk = _Walk(driver, perf_counter() + BUDGET)
    stuck = _parked(driver, set(stuck_accounts))
    all_inside = True
    found = 0
    values = [v for v in gc.get_objects() if type(v) is Value and v.charge and v.account.open is account]
    arrays = [
        (array, escape.nbytes)
        for device in driver.devices
        for escape in list(device.memory.escapes.values())  # type: ignore[attr-defined]
        if escape.account.open is account and (array := escape()) is not None
    ]
    walk.hidden |= {id(values), id(arrays)} | {id(pair) for pair in arrays}
    held = [(v.charge, v.where, v) for v in values] + [(n, None, a) for a, n in arrays]
    walk.hidden |= {id(held)} | {id(row) for row in held}
    del values[:], arrays[:]
    while held:
        nbytes, origin, thing = held.pop()
        found += nbytes
        place = f"created at {line_of(origin)}" if origin else _created(thing)
        try:
            ends = walk.up(thing, 1)
        except Unclear as reason:
            all_inside = False
            finding.lines.append(f"{nbytes:,} bytes {place}: held outside ({reason})")
            continue
        for owner, coroutine, what in ends:
            if isinstance(owner, asyncio.Task) and not _waits_on(walk, owner, stuck, set()):
                all_inside = False
            finding.lines.append(f"{nbytes:,} bytes {place}: held by {_describe(owner, coroutine, what)}")
        all_inside = all_inside and bool(ends)
        del ends, thing
    reserved = account.used - found
    if reserved:
        all_inside = False
        finding.lines.append(f"{reserved:,} bytes are reserved by open scopes, or were not found")
    finding.deadlock = all_inside and found > 0
    if len(finding.lines) > _SHOWN:
        more = len(finding.lines) - _SHOWN
        finding.lines[_SHOWN:] = [f"... and {more} more"]
    return finding


def _parked(driver: Driver, accounts: set[Account]) -> set[asyncio.Task[Any]]:
    """The asyncio tasks that wait here for a task that is stuck."""
    return {
        waiter
        for waiter, tasks in driver.parked.values()
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
            if task.account not in accounts:
                return False
            continue
        todo += [v.task for v in task.inputs if v.task is not None and v.task.state == PENDING]
    return True


def _waits_on(walk: _Walk, task: asyncio.Task[Any], stuck: set[asyncio.Task[Any]], trail: set[Any]) -> bool:
    """Whether only tasks in `stuck` could ever wake `task`: it awaits them through gather, a task group, a future."""
    if task in stuck or task in trail:
        return True
    trail.add(task)
    future = getattr(task, "_fut_waiter", None)
    if future is None:
        return False
    if isinstance(future, asyncio.Task):
        return _waits_on(walk, future, stuck, trail)
    try:
        ends = walk.up(future, 1)
    except Unclear:
        return False
    wakers = [owner for owner, _, _ in ends if owner is not task]
    return bool(wakers) and all(isinstance(o, asyncio.Task) and _waits_on(walk, o, stuck, trail) for o in wakers)


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
            elif type(step).__name__ in ("async_generator_asend", "async_generator_athrow", "coroutine_wrapper", "anext_awaitable"):
                todo += gc.get_referents(step)
    return owners


def _describe(owner: Any, coroutine: Any, what: Any) -> str:
    if isinstance(owner, Task):
        return f"the pending task {owner.name!r}, submitted at {line_of(owner.where)}"
    if coroutine is None:
        return f"task {owner.get_name()!r}"
    frame = next(
        (f for name in ("cr_frame", "gi_frame", "ag_frame") if (f := getattr(coroutine, name, None)) is not None), None
    )
    if frame is None:
        return f"coroutine {_name(coroutine)}"
    variables = frame.f_locals
    names = [name for name, held in variables.items() if held is what]
    if sys.version_info < (3, 13):
        variables.clear()  # a snapshot, which would pin the locals
    variable = f"variable {names[0]!r}" if names else "an expression"
    return (
        f"coroutine {_name(coroutine)} ({variable}), which waits at {frame.f_code.co_filename}:{frame.f_lineno}"
        f" in task {owner.get_name()!r}"
    )


def _created(thing: Any) -> str:
    return f"in a result of {thing.meta}" if isinstance(thing, Value) and thing.meta is not None else "in an awaited array"


def _name(coroutine: Any) -> str:
    return getattr(coroutine, "__qualname__", type(coroutine).__name__)


def _kind(thing: Any) -> str:
    if isinstance(thing, types.ModuleType):
        return f"module {thing.__name__}"
    return f"a {type(thing).__name__}"


def _is_namespace(thing: Any) -> bool:
    return isinstance(thing, dict) and "__name__" in thing and "__spec__" in thing
