"""A look at waiting asyncio tasks: where and for what they wait, what they hold, and which timers end them.

Theory of operation. A suspended task has a chain of awaits, from its coroutine down to the future that it waits for.
The task waits at the last step that is the user's. A coroutine that waits in a `with` block holds the block's manager,
and the manager holds its timer: that of an `asyncio.timeout`, of an anyio cancel scope, of a scope's deadline.
`gc.get_referents` shows both. So no timer needs to be registered here. (The loop's own timers lead nowhere: nobody can
see what their callbacks are bound to.) When a timer fires, its task is cancelled, and with it the tasks that it awaits,
gathers, or has in a task group. Other tasks that it started go on.

These tasks do not end all at once. A cancelled task unwinds at the loop's next turn. Only then does its task group
cancel others, which unwind one turn later. Meanwhile the timer has fired, and the others wait as before. So a task that
is about to unwind counts as a timer that is due. That never lasts long: a task that catches the cancellation and waits
again counts as any other.
"""

from __future__ import annotations

import asyncio
import dis
import gc
import inspect
import sys
import types
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from math import inf
from time import thread_time
from typing import Any, Final

from anyio import CancelScope
from anyio.abc import TaskGroup

from .._core.callsite import is_users

# Classes for which Python has no names. If a name changes, less is found, and no deadlock is reported: then anybody may
# wake a task.
_AWAITED: Final = ("async_generator_asend", "async_generator_athrow", "coroutine_wrapper", "anext_awaitable")
_ARMED: Final = "TimerHandle"  # asyncio's or uvloop's
_HANDLES: Final = (_ARMED, "Handle")

_WAIT_FOR: Final = asyncio.wait_for.__code__  # before Python 3.12 it runs the awaitable in a task of its own
# For each type: the attributes with the code, the frame and the next link, and whether it is suspended.
_SUSPENDED: Final[dict[type, tuple[str, str, str, str]]] = {
    types.CoroutineType: ("cr_code", "cr_frame", "cr_await", "cr_suspended"),
    types.GeneratorType: ("gi_code", "gi_frame", "gi_yieldfrom", "gi_suspended"),
    types.AsyncGeneratorType: ("ag_code", "ag_frame", "ag_await", "ag_suspended"),
}
_TELLING: Final = (asyncio.Timeout, CancelScope, asyncio.TaskGroup, TaskGroup)  # managers that end tasks
_MOST: Final = 300  # objects to look at for one object that a coroutine holds. A guess
# The walk goes on through these
_THROUGH: Final = (dict, types.MethodType, types.GeneratorType, types.AsyncGeneratorType)


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


def waiting_elsewhere(loop: asyncio.AbstractEventLoop) -> dict[str, list[str]]:
    """The names of the asyncio tasks that wait, by the line and what they wait for. Leaves out the running task."""
    found: dict[str, list[str]] = {}
    chains, running = Chains(loop), asyncio.current_task(loop)
    for task, steps in sorted(chains.steps.items(), key=lambda item: (len(item[0].get_name()), item[0].get_name())):
        place = place_of(task)
        if task is running or task.done() or not place.startswith("at "):
            continue
        names = sorted(repr(other.get_name()) for other in chains.awaited_by(task) if not other.done())
        inner = code_of(steps[-1])  # such as that of Queue.get
        if names:
            place += f", for task {', '.join(names)}"
        elif inner is not None and not is_users(inner):
            place += f", in {inner.co_qualname}"
        found.setdefault(place, []).append(task.get_name())
    return found


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


def awaited_by(task: asyncio.Task[Any]) -> asyncio.Future[Any] | None:
    """The future that a task waits for; None if it waits for none, or if it cannot be seen."""
    return _awaited_in(steps_of(task))


def _awaited_in(steps: list[Any]) -> asyncio.Future[Any] | None:
    iterator = _next_link(steps[-1]) if steps else None
    return next((one for one in gc.get_referents(iterator) if isinstance(one, asyncio.Future)), None)


def code_of(coroutine: Any) -> types.CodeType | None:
    """The code of a coroutine or generator, asynchronous or not; None for other objects. Makes no frame."""
    names = _SUSPENDED.get(type(coroutine))
    return None if names is None else getattr(coroutine, names[0])


def frame_of(coroutine: Any) -> types.FrameType | None:
    """The frame of a coroutine or generator, asynchronous or not; None if it has ended, and for other objects."""
    names = _SUSPENDED.get(type(coroutine))
    return None if names is None else getattr(coroutine, names[1])


def _next_link(coroutine: Any) -> Any:
    """The object that a suspended coroutine or generator awaits; None if there is none, and for other objects.

    A running one is not asked: before Python 3.13, CPython may take any word of its frame for the answer, and crash.
    """
    names = _SUSPENDED.get(type(coroutine))
    # Python 3.11 does not tell of asynchronous generators: they are suspended, as is the step that leads to them.
    if names is None or not getattr(coroutine, names[3], True):
        return None
    return getattr(coroutine, names[2])


def variables_of(frame: types.FrameType, of: object = None) -> list[tuple[str, int]]:
    """The names of the variables in a frame, with the identities of their values. Changes nothing of the user's.

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
    found = [(name, id(held)) for name, held in list(variables.items())]
    if snapshot and sys.getrefcount(variables) <= 3:  # the frame, the variable, and the argument
        variables.clear()
    return found


def referents(thing: Any) -> Iterable[int]:
    """The identities of the objects that `thing` refers to, each at most as often as it has counted references.

    From Python 3.14 on, a value on the stack of a generator that yields may be borrowed from a variable: it is shown
    twice and counted once. A value shown only on the stack has a reference of its own. Values on the stack at an
    `await` always have one: the compiler borrows nothing across branches.
    """
    shown = map(id, gc.get_referents(thing))
    frame = frame_of(thing) if sys.version_info >= (3, 14) and type(thing) in _SUSPENDED else None
    if frame is None or _next_link(thing) is not None:
        return shown
    plain = set(frame.f_code.co_varnames).difference(frame.f_code.co_cellvars)  # the cell holds the variables in it
    variables = [(name, held) for name, held in variables_of(frame) if name in plain]
    borrowed = _borrowed_before(frame)
    doubtful = {held for name, held in variables if name in borrowed}
    return [*(held for _, held in variables if held in doubtful), *(key for key in shown if key not in doubtful)]


def references_of(things: Iterable[Any]) -> Iterable[int]:
    """The identities of the objects that many objects refer to. `things` must be distinct."""
    if sys.version_info >= (3, 14):
        return chain.from_iterable(map(referents, things))
    return map(id, gc.get_referents(*things))


def _borrowed_before(frame: types.FrameType) -> set[str]:
    """The variables from which the code borrows between the last branch and the present instruction."""
    names = set[str]()
    for step in dis.get_instructions(frame.f_code):
        if step.offset > frame.f_lasti:
            break
        if step.is_jump_target:  # no borrowed value outlasts a branch
            names.clear()
        if "BORROW" in step.opname:
            names.update([step.argval] if isinstance(step.argval, str) else step.argval)
    return names


def _is_kept(held: object, code: types.CodeType) -> bool:
    """Whether `held` may be the snapshot of a frame, held by somebody else."""
    if type(held) is not dict or sys.getrefcount(held) <= 5:  # a frame, a list, two variables and two arguments
        return False
    names = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    return all(type(key) is str and key in names for key in held)


@dataclass(frozen=True)
class Timer:
    """An armed timer, or anything else that is sure to end a task.

    Attributes:
        seconds: until it fires; 0 or less if it is due, or if the task is about to unwind.
        task: the task that it belongs to.
        ends: the tasks that it ends.
    """

    seconds: float
    task: asyncio.Task[Any]
    ends: frozenset[asyncio.Task[Any]]


class Chains:
    """The chains of awaits of all tasks of a loop, at one moment. Each object is looked at once.

    (Ten thousand coroutines may hold one scheduler, or one task group.)
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.steps: dict[asyncio.Task[Any], list[Any]] = {task: steps_of(task) for task in asyncio.all_tasks(loop)}
        self._plain = set[type]()  # types that are no managers and lead to none
        self._in: dict[int, list[Any]] = {}  # managers that end tasks, by the identity of the object a coroutine holds
        self._failed: dict[int, bool] = {}  # whether a child has failed, by the identity of the group

    def timers(self, deadline: float) -> list[Timer] | None:
        """All timers that will end a task, or end one now, in the order of firing. None if `deadline` passes first."""
        found: dict[int, Timer] = {}
        for task, steps in self.steps.items():
            if thread_time() > deadline:
                return None
            held = [held for step in steps for held in _of_wait_for(step)] + self._managers(*steps)
            for one in held:
                when = _fires_at(one)
                if when < inf and id(one) not in found:
                    whose = next((part for part in _referents(one) if isinstance(part, asyncio.Task)), task)
                    found[id(one)] = Timer(when - self._loop.time(), whose, frozenset(self._ended_with(whose)))
            if self._unwinds(task, steps, held):
                found[id(task)] = Timer(0.0, task, frozenset(self._ended_with(task)))
        ending = {task for timer in found.values() if timer.seconds <= 0 for task in timer.ends}
        # A task that awaits one of these unwinds after it.
        tasks = self.steps.keys()
        while ending and (after := [task for task in tasks - ending if not ending.isdisjoint(self.awaited_by(task))]):
            for task in after:
                found[id(task)] = Timer(0.0, task, frozenset(self._ended_with(task)))
                ending |= found[id(task)].ends
        self._in.clear()  # drop the references to what was looked at
        return sorted(found.values(), key=lambda timer: timer.seconds)

    def _managers(self, *steps: Any) -> list[Any]:
        """The managers that end tasks, among those that coroutines hold or whose `with` blocks they wait in."""
        found: list[Any] = []
        held = gc.get_referents(*steps)
        if self._plain.issuperset(map(type, held)):
            return found
        for one in held:
            if type(one) in self._plain:
                continue
            if not _leads_on(type(one)):
                self._plain.add(type(one))
                continue
            if (inside := self._in.get(id(one))) is None:
                inside = self._in[id(one)] = _managers_in(one)
            found += inside
        return found

    def _unwinds(self, task: asyncio.Task[Any], steps: list[Any], held: list[Any]) -> bool:
        """Whether a task with these managers will go on with an exception, or be cancelled by its task group, soon."""
        awaited = _awaited_in(steps)
        gathered = _gathered_by(awaited)
        goes_on = awaited is None or awaited.done() or (gathered and all(child.done() for child in gathered))
        if goes_on and (task.cancelling() or any(_has_failed(future) for future in (awaited, *gathered))):
            return True
        for group in held:
            if id(group) not in self._failed:
                self._failed[id(group)] = any(_has_failed(child) for child in _children_of(group))
        return any(self._failed[id(group)] for group in held)

    def _ended_with(self, task: asyncio.Task[Any]) -> set[asyncio.Task[Any]]:
        """A task, and the tasks that are cancelled with it."""
        found, todo = {task}, [task]
        while todo:
            task = todo.pop()
            steps = self.steps.get(task, ())
            children = [child for held in self._managers(*steps) for child in _children_of(held)]
            fresh = {child for child in (*self.awaited_by(task), *children) if not child.done()} - found
            found |= fresh
            todo += fresh
        return found

    def awaited_by(self, task: asyncio.Task[Any]) -> set[asyncio.Task[Any]]:
        """The tasks that a task awaits, gathers, or has in `asyncio.wait_for`."""
        steps = self.steps.get(task, [])
        awaited = _awaited_in(steps)
        several = (awaited, *_gathered_by(awaited))
        return {child for child in several if isinstance(child, asyncio.Task)} | in_wait_for(steps)


def _leads_on(kind: type) -> bool:
    return hasattr(kind, "__exit__") or hasattr(kind, "__aexit__") or kind is types.MethodType


def _managers_in(held: Any) -> list[Any]:
    """The managers that end tasks, among this object and those that it holds."""
    found, todo, seen = list[Any](), [(held, False)], set[int]()
    while todo and len(seen) < _MOST:
        held, inside = todo.pop()
        kind = type(held)
        if id(held) in seen or not (_leads_on(kind) or (inside and kind in _THROUGH)):
            continue
        seen.add(id(held))
        if isinstance(held, _TELLING):
            found.append(held)
        todo += [(part, True) for part in gc.get_referents(held)]
    return found


def _fires_at(held: Any) -> float:
    """When a timer fires, by the loop's clock; infinity if it is no timer, or not armed.

    A manager is armed while it holds a handle of the loop: not before or after its block, and not once it has fired. An
    anyio cancel scope that has fired cancels again at each turn, until its tasks have left it.
    """
    if isinstance(held, (asyncio.Timeout, CancelScope)):
        if not any(type(part).__name__ in _HANDLES for part in _referents(held)):
            return inf
        if isinstance(held, CancelScope):
            return -inf if held.cancel_called else held.deadline
        return inf if (when := held.when()) is None else when
    if type(held).__name__ == _ARMED:
        return inf if held.cancelled() else float(held.when())
    return inf


def _has_failed(awaited: asyncio.Future[Any] | None) -> bool:
    """Whether a future has ended without a result."""
    return awaited is not None and awaited.done() and (awaited.cancelled() or awaited.exception() is not None)


def in_wait_for(steps: Iterable[Any]) -> set[asyncio.Task[Any]]:
    """The tasks that a task with these steps awaits by `asyncio.wait_for`; they or its timer wake it."""
    return {held for step in steps for held in _of_wait_for(step) if isinstance(held, asyncio.Task)}


def _of_wait_for(step: Any) -> list[Any]:
    """The timer and the awaited task in the variables of `asyncio.wait_for`, if this is its coroutine.

    Without the timer once that has fired: then `wait_for` waits in another coroutine until the task ends.
    """
    if code_of(step) is not _WAIT_FOR:
        return []
    held = gc.get_referents(step)
    fired = isinstance(_next_link(step), types.CoroutineType)
    return [one for one in held if not fired or type(one).__name__ != _ARMED]


def _referents(held: Any) -> list[Any]:
    """The objects that an object's attributes refer to."""
    parts = gc.get_referents(held)
    return [*parts, *(value for part in parts if type(part) is dict for value in part.values())]


def _gathered_by(awaited: asyncio.Future[Any] | None) -> list[asyncio.Future[Any]]:
    """The futures that a future of `asyncio.gather` waits for; none for other futures."""
    if type(awaited) in (asyncio.Future, asyncio.Task):  # gather's future has a class of its own
        return []
    parts = [child for part in _referents(awaited) if type(part) is list for child in part]
    return [child for child in parts if isinstance(child, asyncio.Future)]


def _children_of(held: Any) -> list[asyncio.Task[Any]]:
    """The tasks of a task group, asyncio's or anyio's; none for other objects."""
    if not isinstance(held, (asyncio.TaskGroup, TaskGroup)):
        return []
    children = [child for part in _referents(held) if type(part) is set for child in part]
    return [child for child in children if isinstance(child, asyncio.Task)]
