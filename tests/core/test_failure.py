"""What is remembered of a failed task: nothing grows, nothing is pinned, and nothing odd gets through `await`."""

from __future__ import annotations

import gc
import inspect
import sys
import traceback
import weakref

import pytest

from asyncsched._core.callsite import line_of
from asyncsched._core.failure import Failure
from asyncsched._core.model import FAILED
from asyncsched.errors import TaskCancelled
from tests.validate import validate

from .failing import Thing, caught, divide, failure_of
from .rig import Rig, cancellation, execute


def here():
    frame = sys._getframe(1)
    return frame.f_code, frame.f_lasti


def depth(error):
    return len(traceback.extract_tb(error.__traceback__))


# -- notes and paths --------------------------------------------------------------------------------------------------


def test_the_note_names_the_operation_and_the_line():
    where = here()
    failure = Failure.of(ValueError("no"), "matmul", where)
    (note,) = failure.exception.__notes__
    assert note == f"raised by the task 'matmul', submitted at {line_of(where)}"
    assert f"{__file__}:" in note


def test_a_dependent_raises_the_same_exception_with_its_path():
    failure = Failure.of(ValueError("no"), "a", None)
    b = failure.passed_to("b", None)
    c = b.passed_to("c", None)
    assert repr(caught(c)) == repr(caught(failure)) == "ValueError('no')"
    assert caught(c).__notes__[-1] == "reached through c <- b <- a; the last was submitted at an unknown line"
    assert caught(b).__notes__[-1].startswith("reached through b <- a;")
    assert len(caught(failure).__notes__) == 1


@pytest.mark.parametrize(
    ("steps", "path"),
    [
        (6, "t6 <- t5 <- t4 <- t3 <- t2 <- t1 <- a;"),
        (7, "t7 <- t6 <- t5 <- t4 <- t3 <- t2 <- (1 more) <- a;"),
        (100_000, "t100000 <- t99999 <- t99998 <- t99997 <- t99996 <- t99995 <- (99994 more) <- a;"),
    ],
)
def test_long_paths_are_cut(steps, path):
    failure = Failure.of(ValueError("no"), "a", None)
    for i in range(1, steps + 1):
        failure = failure.passed_to(f"t{i}", None)
    assert path in caught(failure).__notes__[-1]
    del failure  # and a deep chain goes without recursion


def test_nothing_grows_when_it_is_raised_again_and_again():
    failure = failure_of(divide)
    dependent = failure.passed_to("dependent", None)
    first = caught(failure)
    notes, frames = list(first.__notes__), depth(first)
    for _ in range(20):
        assert caught(dependent).__notes__[:-1] == notes
        error = caught(failure)
        assert error.__notes__ == notes
        assert depth(error) == frames


def test_notes_that_the_body_added_stay_and_those_of_awaiters_go():
    error = ValueError("no")
    error.add_note("from the body")
    failure = Failure.of(error, "a", None)
    failure.exception.add_note("from an awaiter")
    assert failure.exception.__notes__ == ["from the body", failure.exception.__notes__[1]]
    assert failure.told() == ["ValueError: no", *failure.exception.__notes__]


def test_one_exception_raised_by_many_tasks_does_not_collect_their_notes():
    """Such as a constant, or the failure of a task that another body raises again."""
    error = ValueError("no")
    error.add_note("from the body")
    for name in "abc":
        failure = Failure.of(error, name, None)
        assert len(failure.passed_to("dependent", None).exception.__notes__) == 3
    assert [note.split(",")[0] for note in failure.exception.__notes__] == ["from the body", "raised by the task 'c'"]


def test_a_cancellation_says_by_whom_and_gets_no_note_of_its_task():
    error = TaskCancelled("a was cancelled by b")
    failure = Failure.of(error, "a", None)
    assert failure.cancelled
    assert failure.exception.__notes__ == error.__notes__
    assert caught(failure.passed_to("dependent", None)).__notes__[-1].startswith("reached through dependent <- a;")


def test_line_of_an_unknown_line():
    assert line_of(None) == "an unknown line"


# -- tracebacks and what they pin -------------------------------------------------------------------------------------


def test_the_traceback_leads_to_the_line_that_raised():
    error = caught(failure_of(divide))
    functions = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert functions == ["caught", "rethrow", "divide"]


def test_a_context_from_one_raise_is_gone_at_the_next():
    failure = failure_of(divide)
    try:
        raise KeyError("of the awaiter")
    except KeyError:
        error = caught(failure)
        assert isinstance(error.__context__, KeyError)
    assert caught(failure).__context__ is None


def test_the_context_of_the_body_stays():
    def body():
        try:
            {}["key"]
        except KeyError:
            divide()

    failure = failure_of(body)
    for _ in range(2):
        assert isinstance(caught(failure).__context__, KeyError)


def body_direct(thing):
    divide(thing)


def body_cause(thing):
    try:
        divide(thing)
    except ZeroDivisionError as error:
        raise ValueError("no") from error


def body_context(thing):
    try:
        divide(thing)
    except ZeroDivisionError:
        raise ValueError("no")  # noqa: B904  the context is the point


def body_generator(thing):
    any(divide(local) for local in [thing])


def body_group(thing):
    errors = []
    try:
        divide(thing)
    except ZeroDivisionError as error:
        errors.append(error)
    raise ExceptionGroup("several", [ExceptionGroup("inner", errors), ValueError("no")])


def body_wrapped(thing):
    next(iter(()))


BODIES = [body_direct, body_cause, body_context, body_generator, body_group, body_wrapped]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_the_locals_of_the_body_are_dropped(body):
    thing = Thing()
    reference = weakref.ref(thing)
    failure = failure_of(body, thing)
    del thing
    gc.collect()
    assert reference() is None
    assert caught(failure) is not None


def test_a_failure_that_was_seen_does_not_pin_the_frame_of_its_awaiter():
    rig = Rig()
    task, value = rig.submit()
    rig.fail(task)

    def awaiter(failure):
        local = Thing()
        with pytest.raises(ValueError, match="no"):
            failure.rethrow()
        return weakref.ref(local)

    reference = awaiter(value.failure)
    del task, value
    gc.collect()
    assert reference() is None
    assert rig.root.take_failures() == ([], 0)


def test_a_coroutine_that_handles_an_exception_survives_the_failure_of_a_body_that_chains_to_it():
    """Clearing the frame of a suspended coroutine would close it."""

    class Turn:
        def __await__(self):
            yield

    async def handler(found):
        while True:
            try:
                divide()
            except ZeroDivisionError as error:
                found.append(error)
                await Turn()

    def generator(found):
        try:
            divide()
        except ZeroDivisionError as error:
            found.append(error)
            yield 1
        yield 2

    found = []
    coroutine = handler(found)
    coroutine.send(None)
    numbers = generator(found)
    assert next(numbers) == 1

    def body():
        try:
            raise found[0]
        except ZeroDivisionError as error:
            error.__cause__ = found[1]
            raise ValueError("no") from error

    failure_of(body)
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_SUSPENDED
    coroutine.send(None)
    assert next(numbers) == 2
    coroutine.close()


# -- seen -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("through_dependent", [True, False])
def test_a_failure_counts_as_seen_when_it_or_a_dependent_was_raised(through_dependent):
    rig = Rig()
    task, value = rig.submit()
    dependent, other = rig.submit(value)
    rig.dispatch()
    rig.finish(task, error=ValueError("no"))
    rig.finish(dependent)
    rig.drain()
    assert dependent.failure.root is task.failure
    assert not task.failure.seen
    assert task.failure.kind == "ValueError"
    assert not task.failure.seen  # its kind tells nobody
    caught((other if through_dependent else value).failure)
    assert task.failure.seen
    assert rig.root.take_failures() == ([], 0)


def test_a_failure_seen_through_a_dependent_that_ended_first_is_not_reported():
    """A stream may be overtaken between the end of a task and its completion in the completions."""
    rig = Rig(lanes=2)
    task, value = rig.submit()
    rig.dispatch()
    dependent, other = rig.submit(value)
    rig.dispatch()
    rig.streams[task.lane].clear()
    execute(task, 0, ValueError("no"))
    execute(dependent, 0)
    rig.post(dependent)
    rig.drain()
    caught(other.failure)
    rig.post(task)
    rig.drain()
    validate(rig.engine)
    assert (rig.engine.ledger.ended[FAILED], rig.engine.ledger.unfinished) == (2, 0)
    assert rig.root.take_failures() == ([], 0)


def test_cancellations_of_dependents_share_the_root():
    rig = Rig()
    task, value = rig.submit()
    _, other = rig.submit(value)
    failure = cancellation(task)
    rig.engine.cancel(task, failure)
    assert other.failure.root is failure
    assert other.failure.cancelled
