"""Who holds the bytes of an account, and whether those who may act can let a stuck task in.

The search explains: it names the holders in an error, in the log and in `explain`. It also answers whether everybody
who holds bytes waits here (`Finding.deadlock`). That alone convicts nobody: see `stall`.

An asyncio task waits here if it waits for stuck tasks only, or for what only such tasks can do (another task's end, an
event, a queue). All others may let go of what they hold at any time, and so may holders that were not found. What they
let go of may let other stuck tasks in, whose awaiters then let go of more. So the question is repeated until nothing
changes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import inf
from operator import itemgetter
from typing import Any

from .._arguments import counted
from .._core.callsite import line_of
from .._core.model import LAUNCHED, PENDING, Account, Scope, Task, Value
from .awaiting import awaited_by, where_it_waits
from .holders import End, Graph
from .runtime import Runtime

BUDGET = 0.25  # seconds of the loop's thread for a search that somebody asks for
_SHOWN = 8
_HOLDERS_SHOWN = 3
_LOOKED_UP = 500  # values whose holders are named; the rest is counted
# Kinds of holders. In the list those that may release bytes come first, and of each group those of the most bytes
_FREE, _COROUTINE, _OTHER = range(3)


@dataclass
class Finding:
    """The result of a search for one account.

    Attributes:
        deadlock: the first stuck task will never be let in, unless by a person or through a socket.
        lines: the holders of the bytes.
        queued: how many of the bytes lie in asyncio queues.
        reserved: how many of the bytes are reserved by open scopes.
        caller: in a deadlock, the future of the last task that keeps a reserve while others answer it, as the runners
            of a batcher do. To fail it is better than to fail the stuck task: the bytes that it releases may let the
            others be answered.
    """

    deadlock: bool = False
    lines: list[str] = field(default_factory=list)
    queued: int = 0
    reserved: int = 0
    caller: asyncio.Future[Any] | None = None


def graph_of(runtime: Runtime) -> Graph:
    """The beginning of a search, for whichever accounts. On the loop's thread."""
    assert runtime.loop is not None
    answers: dict[asyncio.Task[Any], set[int]] = {}
    for future, tasks in _answered(runtime).items():
        for task in tasks:
            answers.setdefault(task, set()).add(future)
    return Graph(runtime.loop, runtime.engine.root.unfinished(), answers)


def investigate(runtime: Runtime, accounts: Collection[Account], budget: float) -> dict[Account, Finding]:
    """Search for the holders of these accounts' bytes, on the loop's thread, for so many seconds at most."""
    graph = graph_of(runtime)
    graph.walk(budget)
    return Case(runtime, graph, accounts).findings({})


class Case:
    """A search, and the conclusions from it, after the walk."""

    def __init__(self, runtime: Runtime, graph: Graph, accounts: Collection[Account]) -> None:
        graph.count()  # before anything here refers to what was found
        self._runtime, self._graph, self._accounts = runtime, graph, accounts
        self._unfinished = runtime.engine.root.unfinished()
        self._found = list[tuple[Account, int, int, str]]()  # account, bytes, place in the graph, text
        arrays = {id(one()): one for device in runtime.devices for one in [*device.memory.escapes.values()]}
        line = cache(line_of)
        for place, thing in enumerate(graph.things):
            value = thing if type(thing) is Value else arrays.get(id(thing))
            if value is not None and value.charge and (account := value.account.open) in accounts:
                kind = "" if value is thing else "in an awaited array, "
                self._found.append((account, value.charge, place, f"{kind}created at {line(value.site)}"))
        self._reserved = list(reserves(runtime.engine.root, accounts))
        self._parked = set(map(id, runtime.parked))
        unknown = {account: account.used for account in self._accounts}
        owned = [(account, scope.reserve) for account, scope in self._reserved if _owner(scope) is not None]
        flying = [(task.scope.account.open, task.cost) for task in self._unfinished if task.state == LAUNCHED]
        for account, nbytes in (*owned, *flying, *[found[:2] for found in self._found]):
            if account in unknown:
                unknown[account] -= nbytes
        self._unknown = unknown
        self._judged = self._judge({account: n if n >= 0 else inf for account, n in unknown.items()})

    def stands(self) -> bool:
        """Whether a case that was judged on another thread still holds: all wait, and nobody has got hold of a thing.

        On the loop's thread; true until other code runs.
        """
        waiting = self._runtime.parked
        return (
            self._graph.count()
            and self._parked <= set(map(id, waiting))
            and not any(future.done() for future in waiting)
        )

    def findings(self, stuck: Mapping[Account, Task]) -> dict[Account, Finding]:
        """Judge whether these tasks, the first stuck ones of their accounts, will ever be let in."""
        marks, moving, free = self._judged
        unknown = self._unknown
        findings = {account: self._finding(account, unknown[account], marks, moving) for account in self._accounts}
        for account, first in [(account, first) for account, first in stuck.items() if account in findings]:
            findings[account].deadlock = self._graph.shows_timers and not _finds_room(first, free)
            findings[account].caller = self._last_caller(account, marks)
        return findings

    def _judge(self, unknown: dict[Account, float]) -> tuple[list[int], set[Task], dict[Account, float]]:
        """How far what acts reaches, the pending tasks that may be let in, and the bytes that may come free."""
        free, tasks, at = unknown, self._graph.tasks, self._graph.at
        launched = [at[id(task)] for task in self._unfinished if task.state != PENDING and id(task) in at]
        parked = [
            (tasks[waiter], those)
            for future, (waiter, those) in self._runtime.parked.items()
            if waiter in tasks and not future.done()
        ]
        while True:
            moving = self._moving(free)
            stuck = [
                place for place, those in parked if all(one.state != LAUNCHED and one not in moving for one in those)
            ]
            marks = self._graph.acting({*stuck}, [*launched, *(at[id(task)] for task in moving if id(task) in at)])
            before, free = free, dict(unknown)
            for account, nbytes, place, _ in self._found:
                free[account] += nbytes if marks[place] else 0
            for account, scope in self._reserved:
                owner = _owner(scope)
                free[account] += scope.reserve if owner is not None and self._acts(owner, marks) else 0
            if free == before:
                return marks, moving, free

    def _moving(self, free: Mapping[Account, float]) -> set[Task]:
        """The pending tasks that find room if the bytes in `free` come free, and the tasks that depend on them."""
        pending = [task for task in self._unfinished if task.state == PENDING and not task.blockers]
        todo = [task for task in pending if _finds_room(task, free)]
        found = set(todo)
        while todo:
            fresh = set(todo.pop().dependents) - found
            found |= fresh
            todo += fresh
        return found

    def _acts(self, owner: asyncio.Task[Any], marks: list[int]) -> bool:
        place = self._graph.tasks.get(owner)
        return place is None or marks[place] > 0

    def _last_caller(self, account: Account, marks: list[int]) -> asyncio.Future[Any] | None:
        """The future of the last task that keeps a reserve while others answer it, and may release the reserve.

        If possible, of one that waits here.
        """
        bound = set[int]().union(*[one.bound() for one in self._runtime.answerers])
        free = _answered(self._runtime).keys() - bound
        owners = [owner for whose, scope in self._reserved if whose is account and (owner := _owner(scope)) is not None]
        owners.sort(key=lambda owner: not self._acts(owner, marks))
        callers = [future for owner in owners if id(future := awaited_by(owner)) in free]
        return callers[-1] if callers else None

    def _finding(self, account: Account, unknown: float, marks: list[int], moving: set[Task]) -> Finding:
        """Name the holders of an account's bytes."""
        finding, listing = Finding(), Counter[tuple[int, float, str]]()
        found = sorted([one[1:] for one in self._found if one[0] is account], key=itemgetter(0), reverse=True)
        for nbytes, place, text in found[:_LOOKED_UP]:
            ends, outside, queued = self._graph.held_by(place)
            finding.queued += nbytes * queued
            may_go_on = [self._acts(one, marks) if isinstance(one, asyncio.Task) else one in moving for one, _ in ends]
            rank, told = _describe_ends([*zip(ends, may_go_on, strict=True)], outside)
            listing[rank, nbytes, f"{nbytes:,} bytes {text}: held {told}"] += 1
        for _, scope in [one for one in self._reserved if one[0] is account]:
            finding.reserved += scope.reserve
            if (owner := _owner(scope)) is not None:
                rank, told = _describe_ends([((owner, where_it_waits(owner)), self._acts(owner, marks))], None)
                listing[
                    rank, scope.reserve, f"{scope.reserve:,} bytes reserved by scope {scope.name!r}: held {told}"
                ] += 1
        unknown += sum([nbytes for nbytes, *_ in found[_LOOKED_UP:]])
        if unknown > 0:
            why = "" if self._graph.complete else ": the search did not come to its end"
            listing[_FREE, unknown, f"{unknown:,} bytes are reserved by open scopes, or were not found{why}"] += 1
        finding.lines = _shortened(listing)
        return finding


def reserves(root: Scope, accounts: Collection[Account]) -> Iterator[tuple[Account, Scope]]:
    """The open scopes whose reserve is charged to one of these accounts."""
    for scope in root.tree():
        if (account := scope.account_around) is not None and account in accounts:
            yield account, scope


def _owner(scope: Scope) -> asyncio.Task[Any] | None:
    """The unfinished asyncio task that will leave a scope."""
    owner = None if scope.entered_by is None else scope.entered_by()
    return None if owner is None or owner.done() else owner


def _answered(runtime: Runtime) -> dict[int, set[asyncio.Task[Any]]]:
    return {future: tasks for one in runtime.answerers for future, tasks in one.answered_by().items()}


def _finds_room(task: Task, free: Mapping[Account, float]) -> bool:
    """Whether a pending task is let in once the bytes in `free` are free, too."""
    account = task.scope.account
    if account.limit is None or account not in free or (not task.cost and not task.unestimated):
        return True
    return account.used - free[account] + task.cost <= account.limit


def _describe_ends(ends: list[tuple[End, bool]], outside: str | None) -> tuple[int, str]:
    """The holders of an object as text, with the rank of the first that may release it.

    Of several places in one asyncio task, only the most informative is named.
    """
    if not ends and outside is None:
        return _FREE, "by garbage that is not collected yet"
    found = [] if outside is None else [(_FREE, False, False, f"outside ({outside})")]
    best: dict[asyncio.Task[Any], tuple[int, bool, bool, str]] = {}
    for (owner, text), may_go_on in ends:
        if isinstance(owner, asyncio.Task):
            rank = _FREE if may_go_on else _COROUTINE if text.startswith("coroutine") else _OTHER
            told = rank, "(an expression)" in text, " of " not in text, f"by {text}{'' if rank else ', and may go on'}"
            best[owner] = min(best.get(owner, told), told)
    found += sorted(best.values())
    pending = [(task, may_go_on) for (task, _), may_go_on in ends if isinstance(task, Task)]
    if pending:
        rank = _FREE if any(task.state != PENDING or may_go_on for task, may_go_on in pending) else _OTHER
        found.append((rank, False, False, _readers([task for task, _ in pending])))
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
