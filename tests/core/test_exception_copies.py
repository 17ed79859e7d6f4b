"""Odd exceptions: each is delivered as an equal copy where that is certain, and else as it is."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import copyreg
import weakref
from dataclasses import dataclass

import numpy as np
import pytest

from asyncsched._core.failure import Failure
from tests.waiting import no_collector

from .failing import Thing, caught, divide, failure_of


class MyCancelled(asyncio.CancelledError):
    pass


@pytest.mark.parametrize(
    "kind",
    [
        StopIteration,
        StopAsyncIteration,
        GeneratorExit,
        asyncio.CancelledError,
        concurrent.futures.CancelledError,
        MyCancelled,
    ],
)
def test_an_exception_that_means_something_else_to_a_coroutine_is_wrapped(kind):
    def body():
        raise kind("from the body")

    failure = failure_of(body)
    error = caught(failure)
    assert type(error) is RuntimeError
    assert kind.__name__ in str(error)
    assert type(error.__cause__) is kind
    assert failure.kind == "RuntimeError"
    assert not failure.cancelled


def test_an_exception_that_only_shares_a_cancellations_name_is_raised_as_it_is():
    class CancelledError(Exception):
        """An order was cancelled, say."""

    class Refunded(CancelledError):
        pass

    for kind in (CancelledError, Refunded):
        failure = failure_of(lambda kind=kind: raise_(kind("order 7")))
        assert type(caught(failure)) is kind
        assert failure.kind == kind.__name__


def raise_(error):
    raise error


def test_a_wrapped_exception_ends_a_coroutine_as_an_error():
    failure = failure_of(lambda: next(iter(())))

    async def awaiter():
        failure.rethrow()

    with pytest.raises(RuntimeError, match="StopIteration"):
        awaiter().send(None)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_other_base_exceptions_are_raised_as_they_are(kind):
    assert type(caught(failure_of(exec, f"raise {kind.__name__}"))) is kind


@dataclass(frozen=True)
class Frozen(Exception):
    """An exception that lets nobody set its attributes."""

    code: int


def test_an_exception_that_cannot_be_changed_is_raised_all_the_same():
    def body():
        raise Frozen(7)

    failure = failure_of(body)
    for _ in range(2):
        error = caught(failure.passed_to("dependent", None))
        assert isinstance(error, Frozen)
        assert error.code == 7
        assert len(error.__notes__) == 2


@pytest.mark.parametrize("notes", [None, 7, "text", ("a",)])
def test_notes_of_a_wrong_type_do_no_harm(notes):
    error = ValueError("no")
    error.__notes__ = notes
    raised = Failure.of(error, "a", None).exception
    assert [line.partition(",")[0] for line in raised.__notes__] == ["raised by the task 'a'"]


class Derived(ValueError):
    """An exception whose arguments are not those it was made with, as is common."""

    __slots__ = ("hidden",)

    def __init__(self, code: int) -> None:
        super().__init__(f"error {code}")
        self.code, self.hidden = code, [code]


class Denied(PermissionError):
    """Of a form of Python's own, and with more to it."""


def with_more(error: BaseException) -> BaseException:
    """An exception that somebody put something on."""
    error.more = ["more"]  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    "error",
    [
        with_more(PermissionError(13, "not allowed")),
        ValueError("no"),
        KeyError("key"),
        MemoryError(),
        FileNotFoundError(2, "no such file", "name"),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
        SystemExit(3),
        ExceptionGroup("several", [ValueError("no")]),
        np.exceptions.AxisError(9, 2),
        Frozen(7),
        Derived(7),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("pickled", [False, True])
def test_each_delivery_is_a_copy(error, pickled, monkeypatch):
    if pickled:  # by a library in its own way, as tblib has it for all exceptions there are

        def lost(error):
            return type(error).__new__, (type(error),)

        monkeypatch.setitem(copyreg.dispatch_table, type(error), lost)
    object.__setattr__(error, "__cause__", OSError("the cause"))  # a frozen one refuses an assignment
    failure = Failure.of(error, "a", None)
    first, second = caught(failure), caught(failure.passed_to("b", None))
    assert first is not second
    for raised in first, second:
        assert raised is not error
        assert type(raised) is type(error)
        assert (repr(raised), str(raised), raised.args) == (repr(error), str(error), error.args)
        assert raised.__cause__ is error.__cause__
    if isinstance(error, Derived):
        assert (first.code, first.hidden) == (7, [7])


def test_an_exception_that_cannot_be_copied_is_raised_itself():
    error = Denied(13, "no", "name")
    assert caught(Failure.of(error, "a", None)) is error


class NoTraceback(Exception):
    def with_traceback(self, trace):
        raise LookupError("no traceback")


class NoNotes(Exception):
    @property
    def __notes__(self):
        return ["mine"]


class NoReading(Exception):
    def __getattribute__(self, name):
        raise LookupError(name)


@pytest.mark.parametrize("kind", [NoTraceback, NoNotes, NoReading])
def test_an_exception_that_lets_nothing_be_done_with_it_ends_nothing_else(kind):
    """What runs bodies, a stream's thread, asks for its failure outside of any `try`."""

    def body():
        raise kind

    failure = failure_of(body)
    for _ in range(2):
        with pytest.raises((kind, RuntimeError), match=f"{kind.__name__}|"):
            failure.passed_to("dependent", None).rethrow()
    if kind is not NoNotes:
        with pytest.raises(RuntimeError, match=f"the task raised {kind.__name__}, which cannot be stored"):
            failure.rethrow()


def test_an_awaiter_that_returned_holds_nothing_though_it_held_the_handle():
    """From Python 3.12 on a coroutine's frame that is kept keeps the frame, and so the locals, of its awaiter."""
    failure = failure_of(divide)

    async def handle(failure):
        with contextlib.suppress(ZeroDivisionError):
            failure.rethrow()

    async def awaiter(references):
        large = Thing()
        references.append(weakref.ref(large))
        await handle(failure)

    references = []
    with no_collector():
        asyncio.run(awaiter(references))
        assert references[0]() is None
