"""The search for an object's holders: a walk from the asyncio tasks down to what they refer to, counting references.

Theory of operation. `gc.get_referents` gives the objects that an object refers to; CPython's reference count says how
many references to an object there are. When those found account for the whole count, no holder is unseen. The walk
begins at the asyncio tasks and at the scheduler's unfinished tasks, and goes through everything that cannot act by
itself: containers, finished tasks with their results and exceptions, tracebacks and their frames, generators that
nobody drives. What is in the variables of the user's modules comes last: it may be much, and may change at any time,
so it is looked at for its names alone. Any other reference comes from *outside*: from a class, a callback of the event
loop, a running function, from anything not understood, or not reached in time. Outside is the safe answer: it only
means that no deadlock is reported.

The walk's own references must not count. One list holds each object once. Everything else is kept by number, or is an
unfinished task, whose references are not counted.

Here is also what can be said of a waiting asyncio task: where and for what it waits, and what it holds. It has a chain
of awaits, from its coroutine down to the future that it waits for. It waits at the last step that is the user's code.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import sys
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextvars import Context
from functools import cache
from itertools import islice
from math import inf
from threading import get_ident
from time import thread_time
from traceback import walk_stack
from typing import Any, Final
from weakref import getweakrefcount

import numpy as np

from .._blocks import current_task
from .._core.callsite import is_users, is_users_file, line_of
from .._core.free_threading import references
from .._core.model import Lease, Task, Value

QUEUES: Final = (asyncio.Queue, asyncio.LifoQueue, asyncio.PriorityQueue)
_ATOMS: Final = (type, types.ModuleType, types.CodeType, Context, asyncio.AbstractEventLoop)
_INNER: Final = tuple(f"asyncsched.{room}" for room in ("_core", "runtime", "devices", "scheduler"))
_GENERATORS: Final = (types.GeneratorType, types.AsyncGeneratorType)
# From Python 3.15 on a loop over one of these keeps it on the stack, and no iterator
_LOOPED: Final = (list, tuple) if sys.version_info >= (3, 15) else ()
# Weak references to these are no ways to reach them: asyncio's and the package's own
_OWN: Final = (asyncio.Future, types.CoroutineType, *_GENERATORS, types.FunctionType, np.ndarray)
_AT_A_TIME: Final = 500  # objects to look at before the next look at the clock
_INSTALLED: Final = tuple([os.path.dirname(file) + os.sep for file in (os.__file__, os.path.dirname(np.__file__))])
_OF_MODULES: Final = 30_000  # objects to look at that only the user's modules lead to: about 0.1 s
_OF_EACH: Final = 2_000  # references followed from one of those objects: a module's data may be a list of millions
_WAYS: Final = 10_000  # objects looked at on the ways from an object up to its holders

# Classes for which Python has no names. If a name changes, less is found, and no deadlock is reported: then anybody may
# wake a task.
_AWAITED: Final = ("async_generator_asend", "async_generator_athrow", "coroutine_wrapper", "anext_awaitable")

# For each type: the attributes with the frame and the next link, and whether it is suspended.
_SUSPENDED: Final[dict[type, tuple[str, str, str]]] = {
    types.CoroutineType: ("cr_frame", "cr_await", "cr_suspended"),
    types.GeneratorType: ("gi_frame", "gi_yieldfrom", "gi_suspended"),
    types.AsyncGeneratorType: ("ag_frame", "ag_await", "ag_suspended"),
}

Owner = asyncio.Task[Any] | Task | types.ModuleType


def leads_on(kind: type) -> bool:
    """Whether a walk goes through objects of a class: not if they lead everywhere, or nowhere."""
    own = issubclass(kind, (Value, Lease, Task))
    return own or not (issubclass(kind, _ATOMS) or str(kind.__module__).startswith(_INNER))


def is_namespace(thing: Any) -> bool:
    """Whether these are a module's variables."""
    return type(thing) is dict and "__name__" in thing and "__spec__" in thing


class Walk:
    """What asyncio tasks, the scheduler's unfinished tasks and the user's modules refer to.

    Objects have numbers; those that were given have the first.

    Attributes:
        outside: the numbers of the objects that are referred to from outside.
    """

    def __init__(
        self, things: list[Any], tasks: Iterable[asyncio.Task[Any]], unfinished: Iterable[Task], deadline: float
    ) -> None:
        """Walk. If an asyncio task runs on this thread, and asks, its variables count, too.

        Args:
            things: the objects whose holders are wanted. The walk keeps the list; the caller has no other reference.
            deadline: in seconds of `thread_time`.
        """
        self._things = things
        self._numbers = {id(thing): number for number, thing in enumerate(things)}
        self._leads: Callable[[type], bool] = cache(leads_on)
        self._owners = dict[int, Owner]((self._number(task), task) for task in unfinished)
        self._cells = set[int]()  # the variables of waiting cells of notebooks, by identity
        for task in tasks:
            for step in (task, *steps_of(task)):
                self._owners[self._number(step)] = task
                if (frame := frame_of(step)) is not None and not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
                    self._cells.add(id(frame.f_globals))
        if (asker := current_task()) is not None:
            running = [frame for frame, _ in walk_stack(sys._getframe()) if is_users(frame.f_code)]
            self._owners |= {self._number(frame): asker for frame in running}
        # The numbers of what each object refers to, in one list, and where those of each object begin. A list for each
        # object would set off collections of all garbage.
        self._links, self._begins = list[int](), [0]
        self._follow(deadline)
        self._owners |= {self._number(vars(module)): module for module in self._modules()}
        self._leads = cache(lambda kind: kind is not types.FunctionType and leads_on(kind))
        self._follow(inf, _OF_MODULES, _OF_EACH)
        # The links the other way round: the numbers of the objects that refer to each
        to = np.array(self._links, np.intp)
        froms = np.repeat(np.arange(len(things)), np.diff(self._begins))
        self._above: list[int] = froms[np.argsort(to, kind="stable")].tolist()
        self._first_above: list[int] = [0, *np.cumsum(np.bincount(to, minlength=len(things))).tolist()]
        self.outside: set[int] = {*filter(self._has_others, range(len(things)))} - self._owners.keys()

    def _follow(self, deadline: float, most: int = sys.maxsize, of_each: int = sys.maxsize) -> None:
        """Note what each object refers to, and what those do, and so on: for so many objects at most."""
        things, links, begins = self._things, self._links, self._begins
        last = len(begins) - 1 + most
        while (done := len(begins) - 1) < min(len(things), last) and (done % _AT_A_TIME or thread_time() < deadline):
            links += [self._number(part) for part in islice(self._parts(done), of_each) if self._leads_on(part)]
            begins.append(len(links))
        begins += [len(links)] * (len(things) - done)  # nothing is known of the others

    def _modules(self) -> Iterable[types.ModuleType]:
        """The user's modules that are not installed, without a notebook whose cell waits."""
        for module in list(sys.modules.values()):
            if type(module) is types.ModuleType and id(vars(module)) not in self._cells:
                file = str(vars(module).get("__file__", ""))
                if is_users_file(file) and not file.startswith(_INSTALLED):
                    yield module

    def _number(self, thing: Any) -> int:
        number = self._numbers.setdefault(id(thing), len(self._things))
        if number == len(self._things):
            self._things.append(thing)
        return number

    def referring(self, number: int) -> list[int]:
        """The numbers of the objects that were found to refer to one, each as often as it does; -1: to none."""
        return self._above[self._first_above[number] : self._first_above[number + 1]]

    def _parts(self, number: int) -> Collection[Any]:
        """The objects that one refers to, each as often as it does."""
        thing, owner = self._things[number], self._owners.get(number)
        kind = type(thing)
        if issubclass(kind, np.ndarray):  # which takes no part in garbage collection
            return [thing.base]
        if issubclass(kind, asyncio.Task) and owner is None and not thing.done():  # nobody asks for it
            return []
        if kind is types.FrameType and owner is not None:  # a running function, which shows none
            return [held for _, held in variables_of(thing)]
        if kind is Value:
            parts = [thing.base, thing.array]
            return [part for part in parts if type(part) is not np.ndarray or id(part) in self._numbers]
        parts = [part for part in gc.get_referents(thing) if id(part) not in self._cells]
        if kind in _GENERATORS and sys.version_info >= (3, 14):  # what is on its stack may be borrowed from a variable
            return {(id(part), n * (type(part) in _LOOPED)): part for n, part in enumerate(parts)}.values()
        if self._cells and owner is not None and (frame := frame_of(thing)) and id(frame.f_globals) in self._cells:
            parts = [*parts, frame.f_globals]  # only such code changes a notebook's variables
        return parts

    def _leads_on(self, part: Any) -> bool:
        kind = type(part)  # not `isinstance`, which asks the object, and that may be any object
        # Of a module's functions those with a closure: the others, of which there are many, hold hardly anything
        leads = self._leads(kind) or (kind is types.FunctionType and part.__closure__)
        if not leads or not (gc.is_tracked(part) or issubclass(kind, np.ndarray)):
            return False
        if kind is dict and not part:  # such as the emptied snapshot of a frame, which must have no other holder
            return False
        return id(part) in self._cells or not is_namespace(part)

    def _has_others(self, number: int) -> bool:
        """Whether more refers to an object than was found. For a notebook's variables: whether a thread runs there."""
        kind, key = type(self._things[number]), id(self._things[number])
        if key in self._cells:
            stacks = [walk_stack(top) for thread, top in sys._current_frames().items() if thread != get_ident()]
            return any(id(frame.f_globals) == key for stack in stacks for frame, _ in stack)
        if references(self._things, number) - 1 > len(self.referring(number)):
            return True
        weak = not issubclass(kind, _OWN) and not str(kind.__module__).startswith("asyncsched.")
        return weak and getweakrefcount(self._things[number]) > 0

    def spread(self, found: set[int], stay: Collection[Owner]) -> None:
        """Add to `found` all that can be reached from outside, by the modules, or by tasks that are not in `stay`."""
        todo = (self.outside | {number for number, owner in self._owners.items() if owner not in stay}) - found
        while todo:
            found |= todo
            below = {one for n in todo for one in self._links[self._begins[n] : self._begins[n + 1]]}
            todo = below - found - self._owners.keys()

    def reaches(self, thing: Any, found: set[int]) -> bool:
        """Whether an object is among those found, or may be: it was not seen."""
        number = self._numbers.get(id(thing))
        return number is None or number in found

    def holders(self, number: int) -> tuple[dict[Owner, str], bool, bool]:
        """Who holds an object, with the places where; whether others may; whether it lies in a queue."""
        found, ways = dict[Owner, str](), {number: number}  # with the object below each
        todo, queued, others = deque(ways), False, False
        while todo and len(ways) < _WAYS:
            at = todo.popleft()
            others = others or at in self.outside
            queued = queued or type(self._things[at]) in QUEUES
            for above in self.referring(at):
                owner = self._owners.get(above)
                if owner is None:
                    todo += {above} - ways.keys()
                    ways.setdefault(above, at)
                elif "(variable" not in found.get(owner, ""):  # the nearest place, if it has a name
                    cell = id(self._things[at]) in self._cells
                    found[owner] = self._described(owner, above, ways[at] if cell else at)
        return found, others or not found, queued

    def _described(self, owner: Owner, holder: int, held: int) -> str:
        if isinstance(owner, Task):
            return f"the task {owner.name!r}, submitted at {line_of(owner.site)}"
        thing, what = self._things[holder], self._things[held]
        if isinstance(owner, types.ModuleType):
            return f"module {owner.__name__} ({_named(what, list(thing.items()))})"
        frame = thing if type(thing) is types.FrameType else frame_of(thing)
        if frame is None or not is_users(frame.f_code):
            return where_it_waits(owner)
        does = "asks" if frame is thing else "waits"
        return (
            f"coroutine {frame.f_code.co_qualname} ({_named(what, variables_of(frame, thing))}), which {does} at"
            f" {frame.f_code.co_filename}:{frame.f_lineno} in task {owner.get_name()!r}"
        )


def _named(what: Any, variables: Iterable[tuple[str, Any]]) -> str:
    """The name of the first of these variables with this value, in words. (A closure's variable is in a cell.)"""
    if type(what) is types.CellType:
        what = what.cell_contents
    name = next((name for name, value in variables if value is what), None)
    return "an expression" if name is None else f"variable {name!r}"


def where_it_waits(task: asyncio.Task[Any]) -> str:
    """A task's name and the place where it waits, as text."""
    return f"task {task.get_name()!r}, which waits {place_of(task)}"


def place_of(task: asyncio.Task[Any]) -> str:
    """The user's line at which a task waits ("at file:line in f"), or else the coroutine that it runs."""
    step: Any = task.get_coro()
    place = f"in {getattr(step, '__qualname__', type(step).__name__)}"
    for step in steps_of(task):
        frame = frame_of(step)
        if frame is not None and is_users(frame.f_code):
            place = f"at {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
    return place


def steps_of(task: asyncio.Task[Any]) -> list[Any]:
    """The suspended coroutines and generators in a task's chain of awaits, outermost first."""
    found: list[Any] = []
    seen: set[int] = set()
    todo: list[Any] = [task.get_coro()]
    while todo:
        step = todo.pop()
        if step is None or id(step) in seen:
            continue
        seen.add(id(step))
        if type(step) in _SUSPENDED:
            found.append(step)
            todo.append(_next_link(step))
        elif type(step).__name__ in _AWAITED:
            todo += gc.get_referents(step)
    return found


def end_of(task: asyncio.Task[Any]) -> Any:
    """What the last of a task's steps awaits; what the task runs, if it has no step; None if it lets the loop turn."""
    steps = steps_of(task)
    return _next_link(steps[-1]) if steps else task.get_coro()


def awaits(task: asyncio.Task[Any], frame: int) -> bool:
    """Whether a suspended task is in the coroutine or generator with the frame of this identity, or may be, since its
    chain of awaits goes on in C."""
    in_it = any(id(frame_of(step)) == frame for step in steps_of(task))
    return in_it or (end_of(task) is not None and awaits_unseen(task))


def awaited_by(task: asyncio.Task[Any]) -> asyncio.Future[Any] | None:
    """The future that a task waits for; None if it waits for none, or if that cannot be seen."""
    end = end_of(task)
    held = () if end is task.get_coro() else gc.get_referents(end)  # what the task runs may hold any future
    return next((one for one in held if isinstance(one, asyncio.Future)), None)


def awaits_unseen(task: asyncio.Task[Any]) -> bool:
    """Whether a task's chain of awaits ends in C: neither in a future, nor in an object whose `send` is Python's."""
    in_python = isinstance(getattr(type(end_of(task)), "send", None), types.FunctionType)
    return not in_python and awaited_by(task) is None


def frame_of(coroutine: Any) -> types.FrameType | None:
    """The frame of a coroutine or generator, asynchronous or not; None if it has ended, and for other objects."""
    names = _SUSPENDED.get(type(coroutine))
    return None if names is None else getattr(coroutine, names[0])


def _next_link(coroutine: Any) -> Any:
    """The object that a suspended coroutine or generator awaits; None if there is none, and for other objects.

    A running one is not asked: before Python 3.13, CPython may take any word of its frame for the answer, and crash.
    """
    names = _SUSPENDED.get(type(coroutine))
    # Python 3.11 does not tell of asynchronous generators: they are suspended, as is the step that leads to them.
    if names is None or not getattr(coroutine, names[2], True):
        return None
    return getattr(coroutine, names[1])


def variables_of(frame: types.FrameType, of: object = None) -> list[tuple[str, Any]]:
    """The names of the variables in a frame, with their values. Changes nothing of the user's.

    Before Python 3.13, reading a function's variables makes a snapshot in its frame, or renews the existing one: the
    dict that the function got from `locals()`, if it called that. So a snapshot that somebody else holds is left alone.
    A snapshot of our own, which would pin the values, is emptied.

    Args:
        of: the suspended coroutine or generator that the frame belongs to.
    """
    code = frame.f_code
    snapshot = sys.version_info < (3, 13) and code.co_flags & inspect.CO_OPTIMIZED
    if snapshot and any(_is_kept(held, code) for held in gc.get_referents(of)):
        return []
    variables = frame.f_locals
    found = list(variables.items())
    if snapshot and sys.getrefcount(variables) <= 3:  # the frame, the variable, and the argument
        variables.clear()
    return found


def _is_kept(held: object, code: types.CodeType) -> bool:
    """Whether `held` may be the snapshot of a frame, held by somebody else."""
    if type(held) is not dict or sys.getrefcount(held) <= 5:  # a frame, a list, two variables and two arguments
        return False
    names = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    return all(type(key) is str and key in names for key in held)
