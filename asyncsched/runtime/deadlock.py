"""Whether a stall is a deadlock: who holds the retained bytes, and what do these wait for.

It is one if every holder of every byte was found (see `holders`), and each is a pending task, or an asyncio task that
nothing but stuck tasks can ever wake. An asyncio task is woken by whoever holds the future that it waits for: another
task (through `gather`, a task group, an event), and then the same is asked of that one.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from .._core.callsite import line_of
from .._core.model import DONE, PENDING, Account, Task, Value
from .holders import End, Walk, with_subclasses
from .runtime import Runtime

BUDGET = 0.5  # seconds for the first investigation of a stall, during which the event loop stands still
MOST_BUDGET = 4.0  # for later ones, which may take longer and longer: each look for referrers scans the whole heap
_MOST_NODES = 2_500  # of the tape: with more, they are not looked up together in advance
_SHOWN = 8
_FREE, _COROUTINE, _OTHER = range(3)  # kinds of holders as they are listed, those that may let go first
CHAINED: set[type] = set()  # classes of linked lists, as the tape's nodes, which autograd adds


@dataclass
class Finding:
    """What an investigation found."""

    deadlock: bool = False
    lines: list[str] = field(default_factory=list)


def investigate(runtime: Runtime, account: Account, stuck_accounts: Iterable[Account], budget: float) -> Finding:
    """Find who holds the bytes of a stuck account, and whether they all wait for stuck tasks themselves.

    `budget` is the most seconds to search; what was not found by then counts as held outside. Of an account that is
    not stuck, the tasks in flight are charged their part, and not looked for.
    """
    assert runtime.loop is not None
    deadline = perf_counter() + budget
    values, futures, chained = _objects({Value}, with_subclasses(asyncio.Future), CHAINED)
    things, costs = _held(runtime, account, values)
    tape = _tape(chained)
    values.clear()  # these two lists would count as holders
    chained.clear()
    walk = Walk(runtime.loop, futures, deadline, runtime.engine.admission.tasks())
    holders = walk.up(things, tape)
    stuck = _stuck(walk, _asyncio_tasks(holders), _parked(runtime, set(stuck_accounts)))
    listing: Counter[tuple[int, str]] = Counter()
    for (nbytes, place), ends in zip(costs, holders, strict=True):
        listing.update({(rank, f"{nbytes:,} bytes {place}: held {text}") for rank, text in _told(ends, stuck)})
    in_flight = sum([task.cost for task in runtime.engine.audit.launched() if task.scope.account.open is account])
    missing = account.used - in_flight - sum(nbytes for nbytes, _ in costs)
    if missing > 0 or (missing and not in_flight):  # results of tasks in flight may be counted twice
        listing[_FREE, f"{missing:,} bytes are reserved by open scopes, or were not found"] += 1
    return Finding(bool(listing) and all(rank != _FREE for rank, _ in listing), _shown(listing))


def _told(ends: list[End] | str, stuck: set[asyncio.Task[Any]]) -> set[tuple[int, str]]:
    """Who holds a thing, each with a rank. Of several places in one asyncio task only the one that says most."""
    if not ends:
        return {(_FREE, "by garbage that is not collected yet")}
    if isinstance(ends, str):
        return {(_FREE, f"outside ({ends})")}
    best: dict[asyncio.Task[Any], tuple[int, str]] = {}
    pending: list[Task] = []
    for owner, text in ends:
        if isinstance(owner, Task):
            pending.append(owner)
            continue
        rank = _FREE if owner not in stuck else _COROUTINE if text.startswith("coroutine") else _OTHER
        told = rank, f"by {text}{'' if rank else ', and may go on'}"
        best[owner] = min(best.get(owner, told), told)
    return {*best.values(), *([(_OTHER, _readers(pending))] if pending else [])}


def _readers(pending: list[Task]) -> str:
    first = min(pending, key=lambda task: task.seq)
    more = f" and {len(pending) - 1:,} more tasks that wait" if len(pending) > 1 else ""
    return f"by the task {first.name!r}, submitted at {line_of(first.site)}{more}"


def _shown(listing: Counter[tuple[int, str]]) -> list[str]:
    shown = [line if n == 1 else f"{n:,} x {line}" for (_, line), n in sorted(listing.items())]
    if len(shown) > _SHOWN:
        shown[_SHOWN:] = [f"... and {len(shown) - _SHOWN:,} more"]
    return shown


def _asyncio_tasks(holders: Iterable[list[End] | str]) -> set[asyncio.Task[Any]]:
    return {owner for ends in holders if not isinstance(ends, str) for owner, _ in ends if not isinstance(owner, Task)}


def _objects(*kinds: set[type]) -> list[list[Any]]:
    """All objects of these classes: looked for at once, since there may be a million others."""
    wanted = set[type]().union(*kinds)
    found = [thing for thing in gc.get_objects() if type(thing) in wanted]
    return [[thing for thing in found if type(thing) in those] for those in kinds]


def _held(runtime: Runtime, account: Account, values: list[Value]) -> tuple[list[Any], list[tuple[int, str]]]:
    """What is charged to the account: values, and the owners of arrays that left.

    With their bytes and where they are from.
    """
    things: list[Any] = [v for v in values if v.charge and v.account.open is account]
    costs = [(v.charge, f"created at {line_of(v.site)}") for v in things]
    for device in runtime.devices:
        for escape in list(device.memory.escapes.values()):
            if escape.account.open is account and (array := escape.visible()) is not None:
                things.append(array)
                costs.append((escape.nbytes, f"in an awaited array, created at {line_of(escape.site)}"))
    return things, costs


def _tape(nodes: list[Any]) -> list[Any]:
    """Members of long linked lists: found one by one, each would take a scan of the heap."""
    # Not the empty tuple, a singleton: finding who refers to it would use up the budget.
    tuples = {id(part): part for node in nodes for part in gc.get_referents(node) if type(part) is tuple and part}
    found = [*nodes, *tuples.values()]
    return found if len(found) < _MOST_NODES else []


def _parked(runtime: Runtime, accounts: set[Account]) -> set[asyncio.Task[Any]]:
    """The asyncio tasks that wait here for tasks that are all stuck."""
    return {
        waiter
        for future, (waiter, tasks) in runtime.parked.items()
        if waiter is not None
        and not future.done()
        and all(_is_stuck(task, accounts) for task in tasks if task.state < DONE)
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


def _stuck(walk: Walk, tasks: set[asyncio.Task[Any]], parked: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """The asyncio tasks that only stuck ones can wake: those parked here, and among `tasks` and what wakes them."""
    wakers: dict[asyncio.Task[Any], set[Any]] = {}
    fresh = tasks - parked
    while fresh:
        found = _wakers(walk, list(fresh))
        wakers |= found
        fresh = {waker for those in found.values() for waker in those if isinstance(waker, asyncio.Task)}
        fresh -= parked | wakers.keys()
    stuck = parked | wakers.keys()
    while free := {task for task in stuck - parked if not wakers[task] or not wakers[task] <= stuck}:
        stuck -= free
    return stuck


def _wakers(walk: Walk, tasks: list[asyncio.Task[Any]]) -> dict[asyncio.Task[Any], set[Any]]:
    """For each task those who can wake it; an empty set where somebody who is not known may."""
    found: dict[asyncio.Task[Any], set[Any]] = {task: set() for task in tasks}
    on_futures = []
    for task in tasks:
        awaited = getattr(task, "_fut_waiter", None)
        if awaited is not None and not awaited.done():  # else it is about to run
            if isinstance(awaited, asyncio.Task):
                found[task] = {awaited}
            else:
                on_futures.append(task)
        del awaited
    for task, ends in zip(on_futures, walk.up([getattr(task, "_fut_waiter") for task in on_futures]), strict=True):  # noqa: B009
        if not isinstance(ends, str):
            found[task] = {owner for owner, _ in ends if owner is not task}
    return found
