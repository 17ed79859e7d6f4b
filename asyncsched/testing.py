"""For your own tests: a pytest plugin with a scheduler that reports what a test leaves behind.

Only tests that ask for it load it, by one line in `conftest.py` or on pytest's command line:

    pytest_plugins = "asyncsched.testing"

    async def test_mine(scheduler):
        x = await scheduler.put(np.arange(3.0))
        assert await x.sum().item() == 3.0

Asynchronous tests need pytest-asyncio (in strict or auto mode) or anyio's plugin, whichever runs them; anyio's needs a
fixture `anyio_backend` that returns "asyncio". If several tests share a loop of pytest-asyncio's, its setting
`asyncio_default_fixture_loop_scope` must be that of the tests.

Theory of operation. In its strict mode, pytest-asyncio requires a mark on its fixtures; anyio's plugin must not see
one. So there are two fixtures, and the one that users name asks for the one of the plugin that runs the test. It names
the options, too, since pytest gives parameters only to fixtures that it finds by name.

Tasks are checked when the test's coroutine has ended. Tensors are checked last of all: until then the log's records,
the instance of the test's class and the results of other fixtures may rightly hold some. They are not checked after a
failed test, since the traceback holds its variables. No operation runs at once on the loop's thread, since results of
such operations do not note the line that made them.

PYTEST_DONT_REWRITE: a conftest.py may import this module as well as name it, and the module has no assertions.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from math import inf
from typing import Any

import pytest

from ._blocks import asynccontextmanager
from ._core.callsite import line_of
from .devices.sim import SimDevice
from .errors import add_note
from .runtime.deadlock import investigate
from .runtime.life import InlineMode
from .runtime.runtime import Runtime
from .runtime.waiting import drained
from .scheduler import Scheduler

ASGIApp = Callable[[Any, Any, Any], Awaitable[None]]
SimScheduler = Callable[..., AbstractAsyncContextManager[Scheduler]]

_LONG = 5.0  # seconds to find out who holds results; nothing else runs then
_SOON = 0.25  # seconds for one of the last tasks to end, which a test need not await
_LAST = 5.0  # seconds for tasks that a test left running to end
_passed = pytest.StashKey[bool]()
_runtimes = pytest.StashKey[list[Runtime]]()
_unfinished = pytest.StashKey[list[str]]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Note whether a test passed."""
    if call.when == "call":
        item.stash[_passed] = call.excinfo is None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """After all other teardown, fail for what the test left behind."""
    try:
        yield
        if item.stash.get(_passed, False) and (left := _leftovers(item)):
            pytest.fail("\n".join(["the test left behind:", *left]), pytrace=False)
    finally:
        if _runtimes in item.stash:
            del item.stash[_runtimes]  # the item lives as long as the session


def _leftovers(item: pytest.Item) -> list[str]:
    runtimes = item.stash.get(_runtimes, [])
    if runtimes:
        getattr(item, "funcargs", {}).clear()
        getattr(getattr(item, "instance", None), "__dict__", {}).clear()
    return [*item.stash.get(_unfinished, ()), *[line for runtime in runtimes for line in _held_results(runtime)]]


@pytest.fixture
def scheduler_options() -> dict[str, Any]:
    """Arguments of the `scheduler` fixture's Scheduler. Override this fixture to set limits, for example."""
    return {"device": "cpu"}


@pytest.fixture
def scheduler(request: pytest.FixtureRequest, scheduler_options: dict[str, Any]) -> Scheduler:
    """An open scheduler on the CPU, the ambient one of the test; closed afterwards.

    The test gets an error

    - for tasks that do not end when it has passed (they are cancelled), and for tensors and awaited arrays that
      something still holds, each with the line that made it;
    - for failures that nobody has seen, also if the test failed.
    """
    if "anyio_backend" in request.fixturenames:
        found: Scheduler = request.getfixturevalue("_scheduler_of_anyio")
    elif request.config.pluginmanager.has_plugin("asyncio"):
        found = request.getfixturevalue("_scheduler_of_asyncio")
    else:
        pytest.fail("`scheduler` needs pytest-asyncio, or a test marked `pytest.mark.anyio`", pytrace=False)
    return found


def _opening(fixture: Any) -> Any:
    """The fixture of one plugin. Each has a function of its own, on which pytest-asyncio leaves its mark."""

    async def opened(request: pytest.FixtureRequest, scheduler_options: dict[str, Any]) -> AsyncIterator[Scheduler]:
        scheduler = await Scheduler(**scheduler_options).__aenter__()
        runtime = scheduler._runtime
        runtime.inline = InlineMode.NEVER
        request.node.stash.setdefault(_runtimes, []).append(runtime)
        yield scheduler
        await _settle(runtime)
        left = request.node.stash[_unfinished] = _cancel(runtime)
        try:
            await scheduler.aclose(_LAST)
        except TimeoutError as late:
            left += [f"  {late}", *getattr(late, "__notes__", ())]
        except BaseException as failures:
            for line in left:
                add_note(failures, line)
            raise
        finally:
            scheduler._leave()

    return fixture(opened)


_scheduler_of_anyio = _opening(pytest.fixture)
if importlib.util.find_spec("pytest_asyncio") is not None:
    import pytest_asyncio

    _scheduler_of_asyncio = _opening(pytest_asyncio.fixture)


async def _settle(runtime: Runtime) -> None:
    """Wait as long as tasks end one after the other. How many remain at the end of a test is chance, not its fault."""
    root, before, now = runtime.engine.root, inf, len(runtime.engine.root.unfinished())
    while 0 < now < before:
        with suppress(TimeoutError):
            async with asyncio.timeout(_SOON):
                await drained(runtime, root)
        runtime.dispatch()
        before, now = now, len(root.unfinished())


def _cancel(runtime: Runtime) -> list[str]:
    """Cancel all unfinished tasks. Returns a line for each."""
    unfinished = runtime.engine.root.unfinished()
    told = Counter(f"{task.name}, submitted at {line_of(task.site)}, which does not end" for task in unfinished)
    if unfinished:
        runtime.cancel_all(unfinished, "the fixture `scheduler`: its test ended before it")
    return [f"  {line}" if n == 1 else f"  {n:,} x {line}" for line, n in told.items()]


def _held_results(runtime: Runtime) -> list[str]:
    """A line for each result that something holds."""
    engine, account = runtime.engine, runtime.ledger.account
    engine.drain()
    if account.used:
        gc.collect()  # garbage in cycles does not count
        engine.drain()
    if not account.used:
        return []
    return [f"  {line}" for line in investigate(runtime, [account], _LONG)[account].lines]


@pytest.fixture
def sim_scheduler(request: pytest.FixtureRequest) -> SimScheduler:
    """Schedulers on a simulated device, for races: `async with sim_scheduler(seed) as s`.

    The device runs tasks in any order that the contract allows, and lets time pass between them. The seed determines
    the order, and is noted on any exception of the block. Further arguments are `fault_rate`, the chance that a task
    fails, `streams`, and those of `Scheduler`. Freed memory is overwritten, so a late read gets nonsense.

        @pytest.mark.parametrize("seed", range(100))
        async def test_in_any_order(sim_scheduler, seed):
            async with sim_scheduler(seed) as s: ...

    As with any scheduler, leaving waits for its tasks, and raises the failures that nobody has seen. Tensors that
    outlive the test are an error.
    """

    @asynccontextmanager
    async def sim_scheduler(
        seed: int, *, streams: int = 2, fault_rate: float = 0.0, **limits: Any
    ) -> AsyncIterator[Scheduler]:
        try:
            async with Scheduler(SimDevice(seed, streams, fault_rate=fault_rate), **limits) as s:
                request.node.stash.setdefault(_runtimes, []).append(s._runtime)
                yield s
        except BaseException as error:
            add_note(error, f"sim_scheduler({seed=})")
            raise

    return sim_scheduler


@asynccontextmanager
async def lifespan(app: ASGIApp) -> AsyncIterator[ASGIApp]:
    """Start an ASGI application, and stop it at the end, as a server does, but httpx's transport does not.

    >>> import httpx
    >>> from asyncsched.serving import Serving
    >>> async def app(scope, receive, send):
    ...     answer = await scope["state"]["scheduler"].call(pow, 2, 10)
    ...     await send({"type": "http.response.start", "status": 200, "headers": []})
    ...     await send({"type": "http.response.body", "body": b"%d" % answer})
    >>> async def main():
    ...     async with lifespan(Serving(app)) as started:
    ...         async with httpx.AsyncClient(transport=httpx.ASGITransport(started)) as client:
    ...             print((await client.get("http://test/power")).text)
    >>> asyncio.run(main())
    1024

    Yields the application; its requests have the state that its lifespan has made.

    Raises:
        The application's exception at start or stop; RuntimeError if it only reports a failure.
    """
    state: dict[str, Any] = {}
    to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    from_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": state}
    running = asyncio.ensure_future(app(scope, to_app.get, from_app.put))

    async def tell(what: str) -> None:
        to_app.put_nowait({"type": f"lifespan.{what}"})
        answer = asyncio.ensure_future(from_app.get())
        await asyncio.wait([answer, running], return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():  # it supports no lifespan, or raised
            answer.cancel()
            await running
        elif answer.result()["type"].endswith(".failed"):
            await running
            raise RuntimeError(f"{what} failed: {answer.result().get('message', '')}")

    async def started(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "state": {**state, **scope.get("state", {})}}, receive, send)

    try:
        await tell("startup")
        try:
            yield started
        finally:
            if not running.done():
                await tell("shutdown")
                await running
    finally:
        running.cancel()
        await asyncio.wait([running])
