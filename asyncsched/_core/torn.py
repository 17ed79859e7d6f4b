"""When an exception leaves the engine in the middle of a change of state: what it counts cannot be relied on any more.

Python raises a signal's KeyboardInterrupt between any two lines of the main thread: in a notebook's cell that submits,
say. A MemoryError or a RecursionError may come anywhere, too. One that passes a method of the engine which changes its
state has left that half done: a task may be counted and stand in no queue, and who waits for it would wait for ever.

So each of these methods tells `on_torn` of it, in an `except` that costs nothing until then, and everything unfinished
is given up (`abandon`). The runtime closes the scheduler. The mark that it is torn is set first, and in place: at the
end of a recursion no function can be entered, so giving up fails, too, and the next `dispatch` begins it anew.

Alternatives. To have the books right at any line: they are changed in some fifty places, most of which change several
numbers. To hold signals back meanwhile takes longer than a tiny operation, and does not hold where another thread gets
the signal. A mark, set on entering and cleared on leaving: a user's finaliser may submit in the middle of a method, and
would find it set, with nothing torn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from .admission import Admission
from .audit import Audit
from .completions import Completions
from .failure import Failure
from .model import DONE, FAILED, LAUNCHED, PENDING, Scope, Task

P = ParamSpec("P")
T = TypeVar("T")


class Torn(Audit):
    """The part of the engine that gives up."""

    root: Scope
    completions: Completions
    on_torn: Callable[[BaseException], None]
    torn: BaseException | None  # until it is given up
    _running: bool
    _news: list[Any]

    def abandon(self, failure: Failure) -> None:
        """End everything unfinished by `failure`, but for what has its result. What runs is not waited for."""
        self.admission = Admission(self.admission.max_ops, self.completions.returning)
        self.unfinished, todo = 0, [self.root]
        while todo:
            scope = todo.pop()
            todo += scope.children
            scope.queue.dress()
            tasks, scope.tasks, scope.bare = scope.tasks, {}, 0
            for task in tasks:
                self._abandon(task, failure)
            scope.reserve = scope.account.pending = scope.account.in_flight = scope.queue.live = 0
            scope.queue.sweep()
        self.torn, self._running = None, False

    def _abandon(self, task: Task, failure: Failure) -> None:
        value = task.value  # read once: the stream's thread clears it when the result is there
        if task.state == LAUNCHED and value is None and task.failure is None:
            task.state = DONE
        else:
            if task.failure is None:
                task.failure = failure.passed_to(task.name, task.site)
            if task.state == PENDING:
                task.refused()
            task.state, task.cancelled = FAILED, True  # so a stream that has not begun it leaves it out
        if task.waiters is not None:
            self._news.append(task)


def whole(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Have an engine's method tell `on_torn` of an exception that leaves it."""

    @wraps(method)
    def entered(engine: Torn, /, *args: P.args, **keywords: P.kwargs) -> T:
        try:
            return method(engine, *args, **keywords)
        except BaseException as error:
            engine.torn, engine._running = error, True
            engine.on_torn(error)
            raise

    return entered
