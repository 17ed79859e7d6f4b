"""Who holds objects: the graph of what coroutines, timers, threads and modules lead to, from the top down.

Theory of operation. The walk begins at everything that can act: the loop's asyncio tasks, the callbacks that it will
call, the variables of running functions, the user's modules. It follows references down through what cannot act by
itself: containers, finished tasks with their results, exceptions with their frames, generators, queues, views of
arrays. It stops at the package's own machinery, at modules and at classes. So it costs as much as these lead to,
whatever else is on the heap.

CPython's reference count says how many references there are to an object. If more than were found, somebody unseen
holds it (C code, or what the walk did not reach), and may act. From there, and from all that is known to act, it
spreads: what they hold they may let go of or change; a future in their hands may wake the tasks that await it, and then
those act, too. It does not spread through an unfinished task, since its holder rarely ends it. From a timer or a thread
it does: that may be bound to do just this.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import sysconfig
import types
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextvars import Context
from functools import partial
from threading import Thread
from time import thread_time
from typing import Any, Final
from weakref import getweakrefcount

import anyio
import anyio.abc
import numpy as np

from .._core.callsite import is_users
from .._core.model import Lease, Task, Value
from .awaiting import code_of, frame_of, referents, steps_of, variables_of, where_it_waits
from .loop_work import NAMES, foreign_threads, work_of

QUEUES: Final = (asyncio.Queue, asyncio.LifoQueue, asyncio.PriorityQueue)
# How far what acts reaches. Whoever holds something acts. A timer or a thread may be bound to whatever it leads to, at
# most one object of another class further on, as in `self.task.cancel`; beyond that it acts.
ACTS, NEAR, BOUND = 1, 2, 3

_FEW: Final = 1_000  # asyncio tasks; among more it is not looked for cells of a notebook
_LONGEST: Final = 100_000  # members of a container: of a larger one the walk takes none
_DESCRIBED: Final = 100  # places in coroutines described with variable and line; only a few are shown
_ABOVE: Final = 5_000  # objects looked at on the way up from one object to its holders
_ENDS: Final = 20
_OPTIMIZED: Final = inspect.CO_OPTIMIZED  # code without it is no function's
_RESUMING: Final = ("task_wakeup", "__wakeup", "__step")
_STEPS_UP: Final = 100  # of a chain of awaits
_STEPS: Final = (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType)
_ATOMS: Final = (
    int, float, complex, str, bytes, types.NoneType, types.CodeType, types.ModuleType, Context, type, Thread,
    asyncio.AbstractEventLoop,
)  # fmt: skip
_PLAIN: Final = (
    list, tuple, dict, set, frozenset, deque, partial, types.MethodType, types.BuiltinMethodType, types.FunctionType,
    types.CellType, types.FrameType, *_STEPS, asyncio.Future, asyncio.Handle, asyncio.Timeout, asyncio.TaskGroup,
    anyio.CancelScope, anyio.abc.TaskGroup,
)  # fmt: skip
_PLAIN_OR_ARRAY: Final = (*_PLAIN, np.ndarray)
_INNER: Final = tuple(f"asyncsched.{room}" for room in ("_core", "runtime", "devices", "scheduler", "_log"))
_LIBRARIES: Final = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_NOTHING: Final = ()  # everybody's
_alone = min(map(sys.getrefcount, [object()]))  # references that a list and the question are

End = tuple["asyncio.Task[Any] | Task", str]  # with a text that says where it is held


class Graph:
    """What everything that can act leads to, as far as the walk came.

    Attributes:
        things: the objects. `at` has their places here by identity.
        complete: the walk came to its end. What it did not see counts as held by somebody unseen.
        shows_timers: the loop shows its timers.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, tasks: Iterable[Task], answers: dict[asyncio.Task[Any], set[int]]
    ) -> None:
        """Note where the walk begins. On the loop's thread.

        Args:
            tasks: the unfinished tasks.
            answers: identities of futures that anybody may hold, by the asyncio task that sets them.
        """
        self.things: list[Any] = []
        self.at: dict[int, int] = {}
        self.complete = False
        self.tasks: dict[asyncio.Task[Any], int] = {}  # the loop's, unfinished, with their places
        self._ups: list[list[int]] = []
        self._downs: list[list[int]] = []
        self._todo = deque[int]()
        self._kinds: dict[type, bool] = {}  # whether the walk stops at an object of this class
        self._roots: dict[int, tuple[int, str]] = {}  # by place: how far it reaches, and what it is
        self._unseen: dict[int, None] = {}  # the places of things that somebody unseen holds
        self._exempt = set[int]()  # identities of things whose references are not counted
        self._awaiting: defaultdict[int, list[int]] = defaultdict(list)  # who awaits a future, by its identity
        self._cells: dict[int, list[Any]] = {}  # the variables of waiting notebook cells, with more that belongs there
        self._described = 0
        everybody = list(asyncio.all_tasks(loop))
        if len(everybody) < _FEW:
            everybody.sort(key=lambda task: (len(task.get_name()), task.get_name()))
            self._find_cells(everybody)
        for task in everybody:
            self.tasks[task] = place = self._add(task, exempt=True)
            self._awaiting[id(_awaited(task))].append(place)
        for one in tasks:
            self._add(one, exempt=True)
        self._places = {*self.tasks.values()}
        self._coroutines = {id(task.get_coro()) for task in everybody}
        self._answers = {self.tasks[task]: keys for task, keys in answers.items() if task in self.tasks}
        self._answered = set[int]().union(*answers.values())
        self._exempt |= self._answered
        work = work_of(loop)
        self.shows_timers = work is not None
        for handle in [] if work is None else [*work.due, *work.timers]:
            self._root(handle, BOUND, "a callback that the event loop will call")
        self._add_frames(asyncio.current_task(loop))
        self._begun = len(self.things)

    def walk(self, seconds: float, threads: bool = True) -> None:
        """Follow the references, for at most so many seconds of this thread. Then the same of the user's modules."""
        until = thread_time() + seconds
        if self._walked(until):
            self._add_modules()
            self.complete = self._walked(until)

    def count(self) -> bool:
        """Find the things that somebody unseen holds. Returns whether they were all found before.

        True until other code runs.
        """
        found, known_weakly = dict[int, None](), dict[type, bool]()
        for place, references in enumerate(map(sys.getrefcount, self.things)):
            kind = type(self.things[place])
            if kind not in known_weakly:
                ours = kind.__module__.startswith("asyncsched.")
                known_weakly[kind] = not (ours or issubclass(kind, _PLAIN_OR_ARRAY))
            unseen = references - _alone > len(self._ups[place])
            # A weak reference may be that of a transport, which acts on its `StreamReader`
            unseen = unseen or (known_weakly[kind] and getweakrefcount(self.things[place]) > 0)
            if unseen and id(self.things[place]) not in self._exempt:
                found[place] = None
        self._unseen, before = found, self._unseen
        return found.keys() <= before.keys()

    def acting(self, parked: Collection[int], acts: Iterable[int]) -> list[int]:
        """How far what acts reaches, for each thing; 0 for things held only by who waits.

        Args:
            parked: the places of asyncio tasks that wait for stuck tasks.
            acts: places of things that act besides.
        """
        marks = [0] * len(self.things)
        runs = [place for task, place in self.tasks.items() if (one := _awaited(task)) is None or one.done()]
        starts = [(place, level, False) for place, (level, _) in self._roots.items()]
        starts += [(place, ACTS, False) for place in (*self._unseen, *acts, *(p for p in runs if p not in parked))]
        while starts:
            self._spread(marks, starts, parked)
            if not any(not marks[place] and place not in parked for place in self._places):
                break
            waking = [0] * len(self.things)  # whom those that are parked may wake
            self._spread(waking, [(place, ACTS, False) for place in parked if not marks[place]], ())
            # The others wait for something that nobody is known to do
            starts = [(p, ACTS, False) for p in self._places if not (marks[p] or waking[p] or p in parked)]
        return marks

    def held_by(self, place: int) -> tuple[list[End], str | None, bool]:
        """The holders of a thing: tasks with the places where they hold it; others, in words; whether it is in a queue.

        The last is whether it lies in an asyncio queue.
        """
        ends: list[End] = []
        outside, queued, seen, todo = None, False, {place}, deque([place])
        while todo and len(seen) < _ABOVE and len(ends) < _ENDS:
            below = todo.popleft()
            thing = self.things[below]
            queued = queued or type(thing) in QUEUES
            if below in self._unseen and outside is None:
                outside = _unseen_holder(thing, self.complete)
            for up in self._ups[below]:
                if up in seen:
                    continue
                seen.add(up)
                if up in self._roots:
                    outside = f"{self._roots[up][1]}{_variable(self.things[up], thing)} holds it"
                elif (end := self._end(up, below)) is not None:
                    ends.append(end)
                else:
                    todo.append(up)
        return ends, outside, queued

    def clear(self) -> None:
        """Let go of all things."""
        self.things.clear()

    # -- the walk -----------------------------------------------------------------------------------------------

    def _add(self, thing: Any, *, exempt: bool = False) -> int:
        place = self.at.get(id(thing))
        if place is None:
            place = self.at[id(thing)] = len(self.things)
            self.things.append(thing)
            self._ups.append([])
            self._downs.append([])
            self._todo.append(place)
        if exempt:
            self._exempt.add(id(thing))
        return place

    def _root(self, thing: Any, level: int, told: str) -> None:
        self._roots[self._add(thing, exempt=True)] = level, told

    def _walked(self, until: float) -> bool:
        """Follow references until none is left, or until then. Returns whether none is left."""
        todo, at, ups, downs, kinds = self._todo, self.at, self._ups, self._downs, self._kinds
        while todo:
            if thread_time() > until:
                return False
            for _ in range(min(200, len(todo))):
                place = todo.popleft()
                below = downs[place]
                for part in self._parts(self.things[place]):
                    stops = kinds.get(type(part))
                    if stops is None:
                        stops = kinds[type(part)] = _stops(type(part))
                    if stops or (type(part) is dict and self._is_namespace(part)) or part is _NOTHING:
                        continue
                    key = at.get(id(part))
                    if key is None:
                        key = self._add(part)
                    below.append(key)
                    ups[key].append(place)
        return True

    def _parts(self, thing: Any) -> Iterable[Any]:
        """The objects that a thing refers to, each as often as it does."""
        kind = type(thing)
        if kind is types.FrameType and self.at[id(thing)] in self._roots:  # it runs
            cells = {*thing.f_code.co_cellvars, *thing.f_code.co_freevars}
            found = [held for name, held in variables_of(thing) if name not in cells]
            return [*found, thing.f_globals] if id(thing.f_globals) in self._cells else found
        if isinstance(thing, np.ndarray):
            return () if thing.base is None else (thing.base,)
        if kind in (list, tuple, dict, set, frozenset, deque) and len(thing) > _LONGEST:
            return ()
        if kind is types.CoroutineType:
            self._exempt.add(id(thing))
        return [*referents(thing), *self._cells[id(thing)]] if id(thing) in self._cells else referents(thing)

    def _is_namespace(self, thing: dict[Any, Any]) -> bool:
        return "__name__" in thing and "__spec__" in thing and id(thing) not in self._cells

    def _find_cells(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Let the walk go through the variables of code that is no function's: of a notebook's cell, which waits."""
        for step in [step for task in tasks for step in steps_of(task)]:
            code = code_of(step)
            frame = None if code is None or code.co_flags & _OPTIMIZED else frame_of(step)
            for names in [] if frame is None else (frame.f_globals, frame.f_locals):
                self._cells[id(names)] = _shown_results(names)
                self._exempt |= {id(names), *map(id, self._cells[id(names)])}

    def _add_frames(self, asker: asyncio.Task[Any] | None) -> None:
        """Begin also at the variables of running functions: of other threads, and of this one."""
        frames = sys._current_frames()
        for thread in foreign_threads():
            self._root(thread, BOUND, told := f"the thread {thread.name!r}")
            for frame in _stack(frames.get(thread.ident or 0)):
                self._root(frame, BOUND, told)
        frames.clear()  # it has this function's frame, which has it
        for frame in _stack(sys._getframe(1)):
            code = frame.f_code
            if is_users(code):
                does = "asks" if asker is not None else "runs"
                told = f"{code.co_qualname}, which {does} at {code.co_filename}:{frame.f_lineno},"
                # A function below the loop cannot act before that ends. The variables of a module are everybody's
                inside = code.co_flags & _OPTIMIZED
                self._root(frame if inside else frame.f_locals, 0 if inside else ACTS, told)

    def _add_modules(self) -> None:
        """Begin also at the variables of the user's modules."""
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None) or ""
            library = file.startswith(_LIBRARIES) or name.startswith("asyncsched") or not (file or name == "__main__")
            if not library and id(vars(module)) not in self._cells:
                self._root(vars(module), ACTS, f"module {name}")

    # -- who acts -----------------------------------------------------------------------------------------------

    def _spread(self, marks: list[int], starts: Iterable[tuple[int, int, bool]], parked: Collection[int]) -> None:
        """Mark what is reached, from places with how far they reach, and whether it ends the asyncio task there.

        A future wakes the tasks that await it; but not those that are parked, which a stuck task wakes.
        """
        todo = list(starts)
        while todo:
            place, level, ends = todo.pop()
            if marks[place] >= 2 * level + ends:
                continue
            marks[place] = 2 * level + ends
            thing, is_task = self.things[place], place in self._places
            wakes = self._awaiting.get(id(thing), ())
            todo += [(waiter, level, False) for waiter in wakes if level > ACTS or waiter not in parked]
            todo += [(self.at[key], ACTS, False) for key in self._answers.get(place, ()) if key in self.at]
            further = level
            if level > ACTS and not (is_task or place in self._roots or isinstance(thing, _PLAIN) or _is_handle(thing)):
                further = level - 1
            for below in self._downs[place]:
                # The callbacks of a task that is woken are called only once it ends
                reach = ACTS if is_task and not ends and type(self.things[below]) not in _STEPS else further
                if id(self.things[below]) in self._coroutines and not is_task:
                    continue  # whoever holds a task's coroutine cannot go on with it
                if below in self._places:
                    if reach > ACTS:
                        todo.append((below, reach, not _wakes(thing)))
                elif type(self.things[below]) is not Task and id(self.things[below]) not in self._answered:
                    todo.append((below, reach, False))

    # -- where they hold ----------------------------------------------------------------------------------------

    def _end(self, up: int, below: int) -> End | None:
        """The task that holds a thing directly, with the place where; None if the walk goes on further up."""
        holder = self.things[up]
        if type(holder) is Task:
            return holder, ""
        if up in self._places:
            return holder, self._place(holder, where_it_waits, holder)
        if id(holder) in self._cells:  # it is that of the coroutine whose variables these are
            codes = [(one, code_of(self.things[one])) for one in self._ups[up]]
            cells = [one for one, code in codes if code is not None and not code.co_flags & _OPTIMIZED]
            up = cells[0] if cells else up
            holder = self.things[up]
        owner = self._owner(up) if type(holder) in _STEPS else None
        if owner is None:
            return None
        return owner, self._place(owner, _describe, owner, holder, self.things[below])

    def _owner(self, place: int) -> asyncio.Task[Any] | None:
        """The asyncio task in whose chain of awaits a coroutine or generator is."""
        step, seen = self.things[place], {place: None}
        for at in (todo := [place]):
            for up in self._ups[at]:
                if up in self._places and any(one is step for one in steps_of(self.things[up])):
                    task: asyncio.Task[Any] = self.things[up]
                    return task
                if up not in seen and len(seen) < _STEPS_UP:
                    seen[up] = None
                    todo.append(up)
        return None

    def _place(self, owner: asyncio.Task[Any], describe: Callable[..., str], *what: Any) -> str:
        """The place where a task holds something, as text; only the task's name once enough places were described."""
        self._described += 1
        return describe(*what) if self._described <= _DESCRIBED else f"task {owner.get_name()!r}"


def _awaited(task: asyncio.Task[Any]) -> asyncio.Future[Any] | None:
    """The future that a task waits for; None if it is about to run. Costs less than `awaited_by`."""
    return getattr(task, NAMES["tasks: what they wait for"], None)


def _stops(kind: type) -> bool:
    """Whether the walk stops at objects of this class."""
    return issubclass(kind, _ATOMS) or (kind.__module__.startswith(_INNER) and kind not in (Value, Lease, Task))


def _is_handle(thing: Any) -> bool:
    return type(thing).__name__ in ("Handle", "TimerHandle", "TaskStepMethWrapper", "FutureIter", "coroutine_wrapper")


def _wakes(thing: Any) -> bool:
    """Whether this is the callback by which asyncio resumes a task, and no holder of the task."""
    return type(thing).__name__ == "TaskStepMethWrapper" or getattr(thing, "__name__", "") in _RESUMING


def _stack(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _shown_results(names: dict[str, Any]) -> list[Any]:
    """The places where IPython keeps shown results (`_`, `Out`) of cells with these variables."""
    shell = IPython.get_ipython() if (IPython := sys.modules.get("IPython")) else None
    if shell is None or names is not shell.user_global_ns:
        return []
    kept = [shell.user_ns_hidden, shell.history_manager.output_hist]
    for thing in (shell.displayhook, shell.last_execution_result):
        kept += [thing, getattr(thing, "__dict__", None)]
    return [one for one in kept if one is not None]


def _variable(root: Any, what: Any) -> str:
    """The variable of a running function or a module that holds something, as text."""
    named = (
        variables_of(root) if isinstance(root, types.FrameType) else list(root.items()) if type(root) is dict else []
    )
    names = [name for name, held in named if held is what]
    return f" (variable {names[0]!r}{_size_of(what)})" if names else ""


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


def _unseen_holder(thing: Any, complete: bool) -> str:
    where = "C code, a class, another library" if complete else "the search did not come to its end"
    return f"something unseen holds a {type(thing).__name__}: {where}"
