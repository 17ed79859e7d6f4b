"""The search for an object's holders: a walk up through its referrers, to the asyncio tasks at the top.

Theory of operation. `gc.get_referrers` gives the objects that refer to an object; CPython's reference count says how
many references there are. When the references found account for the whole count, no holder is unseen. The walk goes up
through everything that cannot act by itself: containers, finished tasks with their results and exceptions, tracebacks
and their frames, generators that nobody drives. It ends at coroutines, which are mapped to their asyncio tasks, or
outside: at a module, at a callback of the event loop, at anything unseen (a running frame shows none of its references)
or not understood. Outside is the safe answer: it only means that no deadlock is reported.

The walk's own references must not count as holders. It has nodes, which are left out, and one list of futures.
Everything else it keeps by `id`, or it holds unfinished tasks, at which the walk ends without counting.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import types
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from threading import get_ident
from time import thread_time
from typing import Any
from weakref import getweakrefcount

import numpy as np

from .._core.callsite import is_users
from .._core.model import DONE, PENDING, Task
from .._core.refcounts import references
from .awaiting import all_objects, code_of, frame_of, referents, steps_of, variables_of, where_it_waits

QUEUES = (asyncio.Queue, asyncio.LifoQueue, asyncio.PriorityQueue)
# With more objects than this, one pass over the heap with a set beats `gc.get_referrers`, which compares with each
_MANY = 250
_AT_A_TIME = 32  # objects asked together. A guess

# Weak references to these are asyncio's own
_OWN_HOLDERS = asyncio.Future, types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType, types.FunctionType

End = tuple["asyncio.Task[Any] | Task", str]  # with a text that says where the asyncio task holds it


@dataclass(slots=True, eq=False)
class _Node:
    """An object on the way up from the starting objects to their holders."""

    thing: Any
    found: int = 0  # references to it found so far
    up: list[_Node] = field(default_factory=list)  # the objects that refer to it and are walked further
    ends: list[End] = field(default_factory=list)  # the tasks that refer to it
    trouble: str | None = None  # why it may have further holders


class Walk:
    """Finds the tasks that hold given objects.

    It walks up level by level, since each search for referrers scans the heap.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, futures: list[Any], deadline: float, *, here: bool = True
    ) -> None:
        """Prepare a walk.

        Args:
            futures: all futures that exist. The walk keeps the list.
            deadline: in seconds of `thread_time`.
            here: this is the loop's thread, on which nothing else runs until the walk ends.
        """
        self._deadline = deadline
        self.queued: list[bool] = []  # for each object of the last search, whether it lies in an asyncio queue
        self._asker = asyncio.current_task(loop) if here else None  # None if the scheduler itself asks
        self._asking = {} if self._asker is None else _held_here(self._asker)
        self._futures = futures
        self._ours: dict[int, Sequence[Any]] = {id(futures): futures}  # containers of this search, by identity
        self._owners: dict[int, asyncio.Task[Any]] = {}  # by the identities of suspended coroutines and generators
        # Namespaces of notebooks whose cell waits, by identity, with the globals of their code.
        self._cells: dict[int, int] = {}
        for task in asyncio.all_tasks(loop):
            for step in steps_of(task):
                self._owners[id(step)] = task
                if (names := _namespaces(step)) is not None:
                    self._cells |= names
        self._cells |= {key: whose for key, whose in _shown_results().items() if whose in self._cells}

    def up(self, starts: list[Any], between: Sequence[Any] = (), *, weakly: bool = False) -> list[list[End] | str]:
        """The holders of each object: tasks with the places where they hold it, or the reason why there may be others.

        `between` are objects through which the others may be held: looked at together, they cost no search of their
        own. The references to the objects from these two lists are known; the caller has none in variables. `weakly`
        says that weak references count, too, as that of a transport to the `StreamReader` that it feeds.
        """
        nodes = {id(thing): _Node(thing) for things in (starts, between) for thing in things}
        level = list(nodes.values())
        for view in level:
            if isinstance(view.thing, np.ndarray) and (whole := nodes.get(id(view.thing.base))) is not None:
                whole.found += 1
                whole.up.append(view)
        self._ours |= {id(starts): starts, id(between): between}
        while level:
            if thread_time() > self._deadline:
                for node in level:
                    node.trouble = "the search ran out of its budget"
                break
            level = self._climb(level, nodes)
        for node in nodes.values() if weakly else ():
            if not issubclass(type(node.thing), _OWN_HOLDERS) and getweakrefcount(node.thing):
                node.trouble = f"somebody has a weak reference to a {type(node.thing).__name__}"
        found, self.queued = [], []
        for key in map(id, starts):
            above = _with_ancestors(nodes[key])
            found.append(_summary(above))
            self.queued.append(any(type(node.thing) in QUEUES for node in above))
        for node in nodes.values():  # nodes form cycles where their objects do: as garbage they would pin these
            node.thing, node.up = None, []
        return found

    def _climb(self, level: list[_Node], nodes: dict[int, _Node]) -> list[_Node]:
        """Find the referrers of each node of a level. Returns the next level."""
        above: list[_Node] = []
        at = {id(node.thing): node for node in level}
        referrers = self._referrers(level, at)
        # By index: an object without a name here has no reference from here when references are counted next.
        self._count((referrers[i] for i in range(len(referrers))), at, nodes, above)
        referrers.clear()
        for node in level:
            unseen = _missing_references(node)
            if unseen > 0:
                asking = self._asking.get(id(node.thing), [])
                node.ends += asking[:unseen]
                if len(asking) < unseen:
                    node.trouble = node.trouble or _unseen_holder(node.thing)
        return above

    def _count(
        self, referrers: Iterable[Any], at: dict[int, _Node], nodes: dict[int, _Node], above: list[_Node]
    ) -> None:
        """Count the references from `referrers` to the nodes in `at`, and connect them."""
        for referrer in referrers:
            if type(referrer) is _Node:
                continue
            below: dict[int, _Node] = {}
            for key in filter(at.__contains__, referents(referrer)):
                below[key] = node = at[key]
                node.found += 1
            if id(referrer) not in self._ours:
                for node in below.values():
                    self._connect(node, referrer, nodes, above)

    def _referrers(self, level: list[_Node], at: dict[int, _Node]) -> list[Any]:
        """All objects that refer to a node's object. Only this list holds them, since references are counted next."""
        if len(level) > _MANY:
            return [*_referring(all_objects(), at)]
        found = gc.get_referrers(*[node.thing for node in level])
        listed = {id(thing) for thing in found}
        # It overlooks some objects that asyncio's futures and tasks hold: in Python 3.11 those of the task's future
        # part (callbacks, its exception), in 3.13 the attributes of derived classes.
        missed = [thing for thing in _referring(self._futures, at) if id(thing) not in listed]
        # From Python 3.13 on, `get_referrers` finds the tuple of its own arguments, which only our list holds. The
        # tuple is gone when references are counted. Counted as found, it would make up for an unseen holder.
        passing = {i for i in range(len(found)) if type(found[i]) is tuple and references(found, i) <= 1}
        return [found[i] for i in range(len(found)) if i not in passing] + missed

    def _connect(self, node: _Node, referrer: Any, nodes: dict[int, _Node], above: list[_Node]) -> None:
        """Note that `referrer` refers to a node: as an end of the walk, a trouble, or another node."""
        kind = type(referrer)  # not `isinstance`, which asks the object, and that may be any object
        owner = self._owners.get(id(referrer))
        if kind is Task and referrer.state < DONE:
            node.ends.append((referrer, ""))
            if referrer.state != PENDING:
                node.trouble = f"{referrer!r} still uses it"
        elif issubclass(kind, asyncio.Task) and not referrer.done():
            node.ends.append((referrer, where_it_waits(referrer)))
        elif owner is not None:
            node.ends.append((owner, _describe(owner, referrer, node.thing)))
        elif self._asker is not None and kind is types.CoroutineType and referrer.cr_running:
            node.ends.append((self._asker, _describe(self._asker, referrer, node.thing)))
        elif (whose := self._cells.get(id(referrer))) is not None and not _runs_elsewhere(whose):
            node.ends += self._cell_ends(whose, node.thing)
        elif issubclass(kind, type):
            node.trouble = "a class holds it"
        elif _is_namespace(referrer):
            node.trouble = f"{_in_module(referrer, node.thing)} holds it"
        elif issubclass(kind, asyncio.Handle):
            node.trouble = "a callback that the event loop will call holds it"
        elif (known := nodes.get(id(referrer))) is not None:
            node.up.append(known)
        else:
            higher = nodes[id(referrer)] = _Node(referrer)
            above.append(higher)
            node.up.append(higher)

    def _cell_ends(self, namespace: int, what: Any) -> list[End]:
        """The tasks that may change the variables of a notebook while one of its cells waits: they run its code."""
        ends: list[End] = []
        for task in set(self._owners.values()):
            for step in steps_of(task):
                frame = frame_of(step)
                if frame is not None and id(frame.f_globals) == namespace:
                    cell = not frame.f_code.co_flags & inspect.CO_OPTIMIZED
                    ends.append((task, _describe(task, step, what) if cell else where_it_waits(task)))
        return ends


def _namespaces(step: Any) -> dict[int, int] | None:
    """The dicts with the variables of code that is no function's, by identity, with its globals.

    Such code is a waiting notebook cell. Until it goes on, only code with the same globals changes these dicts.
    """
    code = code_of(step)
    frame = None if code is None or code.co_flags & inspect.CO_OPTIMIZED else frame_of(step)
    if frame is None:
        return None
    whose = id(frame.f_globals)
    return {whose: whose, id(frame.f_locals): whose}


def _shown_results() -> dict[int, int]:
    """The places where IPython keeps shown results (`_`, `Out`), by identity, with the globals of its cells."""
    shell = IPython.get_ipython() if (IPython := sys.modules.get("IPython")) else None
    if shell is None:
        return {}
    kept: list[Any] = [shell.user_ns_hidden, shell.history_manager.output_hist]
    for thing in (shell.displayhook, shell.last_execution_result):
        kept += thing, getattr(thing, "__dict__", None)
    return dict.fromkeys(map(id, kept), id(shell.user_global_ns))


def _runs_elsewhere(namespace: int) -> bool:
    """Whether another thread runs code with these globals."""
    for thread, frame in sys._current_frames().items():
        at: types.FrameType | None = frame if thread != get_ident() else None
        while at is not None:
            if id(at.f_globals) == namespace:
                return True
            at = at.f_back
    return False


def _held_here(task: asyncio.Task[Any]) -> dict[int, list[End]]:
    """The values in variables of the user's functions that run on this thread in `task`, by identity.

    A search for referrers does not find these.
    """
    found: defaultdict[int, list[End]] = defaultdict(list)
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if is_users(code) and code.co_flags & inspect.CO_OPTIMIZED:  # otherwise its variables are a module's
            place = f"which asks at {code.co_filename}:{frame.f_lineno}"
            for name, held in variables_of(frame):
                found[id(held)].append((task, f"{code.co_qualname} (variable {name!r}), {place}"))
        frame = frame.f_back
    return found


def _referring(things: Iterable[Any], at: dict[int, _Node]) -> Iterator[Any]:
    """The things that refer to a node's object. Asks several at a time, since most do not."""
    keys, rest = at.keys(), iter(things)
    while several := tuple(islice(rest, _AT_A_TIME)):
        if not keys.isdisjoint(map(id, gc.get_referents(*several))):
            yield from [thing for thing in several if not keys.isdisjoint(map(id, gc.get_referents(thing)))]


def _missing_references(node: _Node) -> int:
    """The number of references to a node's object that were not found, without the node's own and the list's."""
    return references([node.thing], 0) - node.found - 2


def _with_ancestors(start: _Node) -> list[_Node]:
    """A node and all nodes that lead up from it."""
    found, seen = [start], {start}
    for node in found:
        fresh = [higher for higher in node.up if higher not in seen]
        seen.update(fresh)
        found += fresh
    return found


def _summary(nodes: list[_Node]) -> list[End] | str:
    """All ends of these nodes, or the first trouble."""
    trouble = next((node.trouble for node in nodes if node.trouble is not None), None)
    return [end for node in nodes for end in node.ends] if trouble is None else trouble


def with_subclasses(*kinds: type) -> set[type]:
    """These classes and all classes derived from them."""
    found, todo = {*kinds}, [*kinds]
    while todo:
        fresh: set[type] = set(type.__subclasses__(todo.pop())) - found
        found |= fresh
        todo += fresh
    return found


def _describe(owner: asyncio.Task[Any], coroutine: Any, what: Any) -> str:
    frame = frame_of(coroutine)
    if frame is None or not is_users(frame.f_code):
        return where_it_waits(owner)
    if type(what) is types.CellType:
        what = what.cell_contents
    names = [name for name, held in variables_of(frame, coroutine) if held is what]
    variable = f"variable {names[0]!r}{_size_of(what)}" if names else "an expression"
    return (
        f"coroutine {frame.f_code.co_qualname} ({variable}), which waits at {frame.f_code.co_filename}:{frame.f_lineno}"
        f" in task {owner.get_name()!r}"
    )


def _size_of(container: Any) -> str:
    kind = type(container)  # exactly: derived classes may run any code when asked
    if kind in (list, tuple, dict, set, deque):
        return f", {kind.__name__} of {len(container):,}"
    return f", asyncio.{kind.__name__} of {container.qsize():,}" if kind in QUEUES else ""


def _unseen_holder(thing: Any) -> str:
    more = ": a slice of it, or" if isinstance(thing, np.ndarray) else ":"
    return f"something unseen holds a {type(thing).__name__}{more} a running function, or C code"


def _in_module(namespace: dict[str, Any], what: Any) -> str:
    names = [name for name, held in list(namespace.items()) if held is what]
    return f"module {namespace['__name__']}" + (f" (variable {names[0]!r})" if names else "")


def _is_namespace(thing: Any) -> bool:
    return type(thing) is dict and "__name__" in thing and "__spec__" in thing
