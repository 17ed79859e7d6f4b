"""Every way in which frames hold something while other code runs: a table, for programs and for each Python.

From 3.14 on a frame may hold by a reference that is borrowed from another's variable, and not counted.

Each way takes the one thing that a list holds, out of it, so that nothing else holds it; calls `use` with it, or with
nothing where it has it elsewhere, as its own code and C's does in the middle; and gives it back afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial, reduce
from itertools import accumulate, starmap
from operator import itemgetter
from types import FrameType
from typing import Any

Use = Callable[[Any], object]
Way = Callable[[list[Any], Use], Any]


def variable(box: list[Any], use: Use) -> Any:
    x = box.pop()
    use(x)
    return x


def borrowed_argument(box: list[Any], use: Use) -> Any:
    def middle(y: Any) -> None:
        def inner(z: Any, again: Any) -> None:
            use(again)

        inner(y, y)

    x = box.pop()
    middle(x)
    return x


def argument_of_its_own(box: list[Any], use: Use) -> Any:
    def inner(x: Any) -> Any:
        use(x)
        return x

    return inner(box.pop())


def stack(box: list[Any], use: Use) -> Any:
    def second(x: Any) -> Any:
        return x, use(x)

    return (second(box.pop()), use)[0][0]


def stack_borrowed(box: list[Any], use: Use) -> Any:
    x = box.pop()
    return (x, use(x), x)[2]


def overwritten_meanwhile(box: list[Any], use: Use) -> Any:
    def inner(y: Any) -> Any:
        sys._getframe(1).f_locals["x"] = None  # as a debugger does; from 3.13 on it is so
        use(y)
        return y

    x = box.pop()
    return inner(x)


def deleted_in_the_caller(box: list[Any], use: Use) -> Any:
    def inner() -> Any:
        nonlocal x
        y, x = x, None
        use(y)
        return y

    x = box.pop()
    return inner()


def cell(box: list[Any], use: Use) -> Any:
    x = box.pop()
    (lambda: use(x))()
    return x


def comprehension(box: list[Any], use: Use) -> Any:
    (found,) = [(x, use(x))[0] for x in [box.pop()]]
    return found


def nested_comprehension(box: list[Any], use: Use) -> Any:
    found = [{k: (v, use(v)) for k, v in {0: x}.items()} for x in [box.pop()]]
    return found[0][0][0]


def generator(box: list[Any], use: Use) -> Any:
    def give(x: Any) -> Iterator[Any]:
        yield
        use(x)
        yield x

    *_, found = give(box.pop())
    return found


def generator_that_waits(box: list[Any], use: Use) -> Any:
    def give(x: Any) -> Iterator[Any]:
        yield (x, (yield), x)

    waits: Any = give(box.pop())
    next(waits)
    use(waits.gi_frame.f_locals["x"])
    return waits.send(None)[0]


def generator_expression(box: list[Any], use: Use) -> Any:
    return next(x for x in [box.pop()] if use(x) is None)


def mapped(box: list[Any], use: Use) -> Any:
    def inner(x: Any) -> Any:
        use(x)
        return x

    return next(map(inner, iter([box.pop()])))


def starmapped(box: list[Any], use: Use) -> Any:
    return next(starmap(lambda x, y: (use(x), y)[1], [(box[0], box.pop())]))


def sort_key(box: list[Any], use: Use) -> Any:
    return sorted([box.pop()], key=lambda x: use(x) or 0)[0]


def greatest(box: list[Any], use: Use) -> Any:
    return max(iter([box.pop()]), key=lambda x: use(x) or 0)


def reduced(box: list[Any], use: Use) -> Any:
    return reduce(lambda x, _: (use(x), x)[1], [None], box.pop())


def accumulated(box: list[Any], use: Use) -> Any:
    *_, found = accumulate([None], lambda x, _: (use(x), x)[1], initial=box.pop())
    return found


def partial_argument(box: list[Any], use: Use) -> Any:
    call = partial(lambda x, _: use(x), box.pop())
    call(None)
    return call.args[0]


def keyword(box: list[Any], use: Use) -> Any:
    def inner(**options: Any) -> Any:
        use(options["x"])
        return options

    return inner(x=box.pop())["x"]


def spread(box: list[Any], use: Use) -> Any:
    def inner(*args: Any) -> Any:
        use(args[0])
        return args[-1]

    return inner(*[box.pop()])


def kept_results(box: list[Any], use: Use) -> Any:
    @cache
    def inner(x: Any) -> Any:
        use(x)
        return x

    return inner(box.pop())


def manager(box: list[Any], use: Use) -> Any:
    @contextmanager
    def inner(x: Any) -> Iterator[Any]:
        yield x

    with inner(box.pop()) as x:
        use(x)
        return x


def attribute(box: list[Any], use: Use) -> Any:
    class Holder:
        def __init__(self, x: Any) -> None:
            self.x = x

        @property
        def it(self) -> Any:
            use(self.x)
            return self.x

    return Holder(box.pop()).it


def matched(box: list[Any], use: Use) -> Any:
    match box.pop(), 0:
        case x, 0:
            use(x)
            return x


def raised(box: list[Any], use: Use) -> Any:
    def inner(x: Any) -> None:
        raise LookupError

    try:
        inner(box.pop())
    except LookupError as error:
        assert error.__traceback__ is not None
        assert error.__traceback__.tb_next is not None
        frame = error.__traceback__.tb_next.tb_frame
        try:
            use(frame.f_locals["x"])
            return frame.f_locals["x"]
        finally:
            del frame  # which leads here, so that nothing is left in a circle


def left_finally(box: list[Any], use: Use) -> Any:
    x = box.pop()
    try:
        return x
    finally:
        use(x)


def fetched(box: list[Any], use: Use) -> Any:
    return itemgetter(0)([(x := box.pop()), use(x)])


def executed(box: list[Any], use: Use) -> Any:
    names = {"box": box, "use": use}
    exec("x = box.pop(); use(x)", names)
    return names["x"]


WAYS: dict[str, Way] = {
    way.__name__: way
    for way in (
        variable, borrowed_argument, argument_of_its_own, stack, stack_borrowed, overwritten_meanwhile,
        deleted_in_the_caller, cell, comprehension, nested_comprehension, generator, generator_that_waits,
        generator_expression, mapped, starmapped, sort_key, greatest, reduced, accumulated, partial_argument, keyword,
        spread, kept_results, manager, attribute, matched, raised, left_finally, fetched, executed,
    )
}  # fmt: skip


# -- who looks on --------------------------------------------------------------------------------------------------


@contextmanager
def nobody() -> Iterator[None]:
    yield


@contextmanager
def tracing() -> Iterator[None]:
    """As a debugger in Python, which reads each frame's variables at each line."""

    def look(frame: FrameType, event: str, arg: Any) -> Any:
        dict(frame.f_locals)
        frame.f_trace_opcodes = True
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def profiling() -> Iterator[None]:
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, arg: None)
    try:
        yield
    finally:
        sys.setprofile(before)


@contextmanager
def monitoring() -> Iterator[None]:
    """As a debugger from Python 3.12 on."""
    monitor = sys.monitoring
    events = monitor.events
    each = events.LINE, events.INSTRUCTION, events.PY_START, events.PY_RETURN, events.CALL, events.PY_YIELD
    monitor.use_tool_id(monitor.DEBUGGER_ID, "tests")
    try:
        for event in each:
            monitor.register_callback(monitor.DEBUGGER_ID, event, lambda *_: None)
        monitor.set_events(monitor.DEBUGGER_ID, sum(each))
        yield
    finally:
        monitor.set_events(monitor.DEBUGGER_ID, 0)
        monitor.free_tool_id(monitor.DEBUGGER_ID)


LOOKING_ON = [nobody, tracing, profiling, *([monitoring] if sys.version_info >= (3, 12) else [])]
