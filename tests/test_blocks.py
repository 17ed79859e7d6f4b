"""Context managers around a user's code, and exceptions that refuse changes: the original arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import numpy as np
import pytest

import asyncsched as asc
import asyncsched.flow.pipeline  # imported where no loop runs, since that reads files
from asyncsched._blocks import asynccontextmanager, contextmanager
from asyncsched.serving import Serving
from asyncsched.testing import lifespan


@dataclass(frozen=True)
class Frozen(Exception):
    code: int = 3


class Refuses(Exception):
    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(name)


class NoSetter(Exception):
    __traceback__ = property(lambda self: None)  # type: ignore[assignment]


def fail(error: Exception, *_: object) -> NoReturn:
    raise error


async def app(scope: Any, receive: Any, send: Any) -> None: ...


def server(error: Exception, **options: Any) -> Serving:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        raise error

    return Serving(failing, partial(asc.Scheduler, "cpu"), drain_on_sigterm=False, **options)


async def in_a_call(s: asc.Scheduler, error: Exception) -> None:
    await s.call(fail, error)


async def in_a_scope(s: asc.Scheduler, error: Exception) -> None:
    async with s.scope(reserve=10, deadline=60):
        raise error


async def in_a_members_block(s: asc.Scheduler, error: Exception) -> None:
    async with asc.Stepper(list, reserve=10).join(1):
        raise error


async def in_a_step(s: asc.Scheduler, error: Exception) -> None:
    async with asc.Stepper(partial(fail, error)).join(1) as outputs:
        await anext(outputs)


async def in_a_batch(s: asc.Scheduler, error: Exception) -> None:
    await asc.Batcher(partial(fail, error))(1)


async def in_a_stage(s: asc.Scheduler, error: Exception) -> None:
    async with s.pipeline([1]).map(partial(fail, error)).open() as items:
        await anext(items)


async def in_a_source(s: asc.Scheduler, error: Exception) -> None:
    def source(epoch: int) -> Iterator[int]:
        yield 1
        raise error

    async with s.pipeline(source).open() as items:
        async for _ in items:
            pass


async def in_the_end_of_a_zipped_source(s: asc.Scheduler, error: Exception) -> None:
    def source(epoch: int) -> Iterator[int]:
        try:
            yield from (1, 2, 3)
        finally:
            raise error

    async with s.pipeline([1, 2]).zip(source).open() as items:
        async for _ in items:
            pass


async def in_the_end_of_a_zipped_async_source(s: asc.Scheduler, error: Exception) -> None:
    async def source(epoch: int) -> AsyncIterator[int]:
        try:
            for number in range(3):
                yield number
        finally:
            raise error

    async with s.pipeline([1, 2]).zip(source).open() as items:
        async for _ in items:
            pass


async def in_a_captured_step(s: asc.Scheduler, error: Exception) -> None:
    await s.capture(partial(fail, error), await s.put(np.ones(3)))


async def in_exact(s: asc.Scheduler, error: Exception) -> None:
    with asc.exact():
        raise error


async def in_a_request(s: asc.Scheduler, error: Exception) -> None:
    async with (serving := server(error, deadline=60)).open():
        await serving({"type": "http", "method": "GET", "path": "/", "headers": []}, asyncio.Event().wait, app)  # type: ignore[arg-type]


async def in_an_open_server(s: asc.Scheduler, error: Exception) -> None:
    async with server(error).open():
        raise error


async def in_a_lifespan(s: asc.Scheduler, error: Exception) -> None:
    async with lifespan(Serving(app, partial(asc.Scheduler, "cpu"))):
        raise error


PLACES = [
    in_a_call, in_a_scope, in_a_members_block, in_a_step, in_a_batch, in_a_stage, in_a_source,
    in_the_end_of_a_zipped_source, in_the_end_of_a_zipped_async_source, in_a_captured_step, in_exact, in_a_request,
    in_an_open_server, in_a_lifespan,
]  # fmt: skip


@pytest.mark.parametrize("error", [Frozen(1), Refuses("a"), NoSetter("b")], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("place", PLACES)
async def test_an_exception_that_refuses_changes_arrives(
    s: asc.Scheduler, place: Callable[[asc.Scheduler, Exception], Awaitable[None]], error: Exception
) -> None:
    with pytest.raises(type(error)) as raised:
        await place(s, error)
    assert raised.value.args == error.args


@contextmanager
def block(swallows: bool = False, instead: Exception | None = None) -> Iterator[int]:
    try:
        yield 1
    except ValueError:
        if instead is not None:
            raise instead from None
        if not swallows:
            raise


@asynccontextmanager
async def async_block(swallows: bool = False, instead: Exception | None = None) -> AsyncIterator[int]:
    with block(swallows, instead) as found:
        yield found


@pytest.mark.parametrize("error", [ValueError("a"), StopIteration(3), StopAsyncIteration(), GeneratorExit()])
async def test_what_leaves_a_block_passes_with_its_traceback(error: BaseException) -> None:
    here = test_what_leaves_a_block_passes_with_its_traceback.__name__
    with pytest.raises(type(error)) as raised, block() as found:
        assert found == 1
        raise error
    assert raised.value is error
    assert {entry.name for entry in raised.traceback} == {here}
    with pytest.raises(type(error)) as raised:
        async with async_block() as found:
            assert found == 1
            raise error
    assert raised.value is error
    assert {entry.name for entry in raised.traceback} == {here}


async def test_what_a_block_swallows_or_raises_instead() -> None:
    with block(swallows=True):
        raise ValueError
    async with async_block(swallows=True):
        raise ValueError
    with pytest.raises(KeyError), block(instead=KeyError()):
        raise ValueError
    with pytest.raises(KeyError):
        async with async_block(instead=KeyError()):
            raise ValueError


async def test_a_block_yields_once() -> None:
    @contextmanager
    def twice() -> Iterator[None]:
        yield
        yield

    @contextmanager
    def never() -> Iterator[None]:
        yield from ()

    with pytest.raises(RuntimeError, match="more than once"), twice():
        pass
    with pytest.raises(RuntimeError, match="did not yield"), never():
        pass


def test_a_block_may_decorate() -> None:
    @asc.exact()
    def exactly(a: int) -> int:
        return a + 1

    assert exactly(1) == 2
    assert exactly(2) == 3


async def test_a_decorated_coroutine_function_runs_in_the_block(s: asc.Scheduler) -> None:
    x = await s.put(np.linspace(-3, 3, 1000, dtype=np.float32))
    with asc.exact():
        expected = await asc.nn.gelu(x).numpy()
    assert (await asc.nn.gelu(x).numpy() != expected).any()

    @asc.exact()
    async def exactly() -> Any:
        await asyncio.sleep(0)
        return await asc.nn.gelu(x).numpy()

    assert (await exactly() == expected).all()


@pytest.mark.parametrize("block", [asc.exact, asc.no_grad])
def test_a_generator_function_is_not_decorated(block: Any) -> None:
    class Yields:
        def __call__(self) -> Iterator[int]:
            yield 1

    async def streams() -> AsyncIterator[int]:
        yield 1

    for function in (Yields(), partial(Yields()), streams):
        with pytest.raises(TypeError, match="the body of a generator runs after the call"):
            block()(function)
