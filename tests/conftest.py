"""Asynchronous tests run on both loops, with nothing allowed to block them, and with a hard timeout."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import logging
import os
import re
import sys
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from typing import Any
from zlib import crc32

import numpy.testing  # noqa: F401  # reads files when first used: not while a loop runs
import pytest
from blockbuster import BlockBuster

import asyncsched as asc
from asyncsched._core.free_threading import FREE_THREADED
from tests.thorough import THOROUGH

# A test file that imports one of these tries more in the thorough step.
MORE = {"THOROUGH", "thoroughly", "usually"}
MakeLoop = Callable[[], asyncio.AbstractEventLoop]

# Tests start some hundred processes: the first compiles the package, and the others find it so.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# numba compiles in the background. So which kernel runs would depend on what ran before, and most tests compare bits.
if os.environ.get("ASYNCSCHED_NUMBA") != "1":
    sys.modules["numba"] = None  # type: ignore[assignment]  # not installed

_unhandled: list[str] = []


def _watched(make: MakeLoop) -> MakeLoop:
    """Loops that write down what nobody handled. As text: an exception that is kept would keep tensors with it."""

    def handler(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)  # for the log that pytest shows, with the traceback
        error = context.get("exception")
        _unhandled.append(f"{context['message']}: {error!r}")
        if error is not None and not isinstance(error, Exception):
            loop.stop()  # the test's timeout, which came in a callback: a loop goes on after what a callback raises

    def make_watched() -> asyncio.AbstractEventLoop:
        loop = make()
        loop.set_exception_handler(handler)
        return loop

    return make_watched


LOOPS: dict[str, MakeLoop] = {"asyncio": _watched(asyncio.new_event_loop)}
if importlib.util.find_spec("uvloop") is not None:
    import uvloop

    LOOPS["uvloop"] = _watched(uvloop.new_event_loop)


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, MakeLoop]:
    """Both, or for a test that says `one_loop` one of them: which depends on its name alone."""
    names = list(LOOPS)
    if item.get_closest_marker("one_loop") is not None:
        names = [names[crc32(item.name.encode()) % len(names)]]
    return {name: LOOPS[name] for name in names}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test with several cases each runs on one of the loops. In CI's thorough step the others run, and what is
    tried more thoroughly there: the rest has run before."""
    tests = defaultdict[str, defaultdict[str, list[pytest.Item]]](lambda: defaultdict(list))
    for item in items:
        if found := re.fullmatch(rf"(.+?)\[(?:{'|'.join(LOOPS)})-(.+)\]", item.nodeid, re.DOTALL):
            tests[found[1]][found[2]].append(item)
    left_out: dict[pytest.Item, None] = {}
    for cases in tests.values():
        for number, on_loops in enumerate(cases.values() if len(cases) > 1 else ()):
            del on_loops[number.bit_count() % len(on_loops)]  # in an order that follows none of the parameters
            left_out |= dict.fromkeys(on_loops)
    if THOROUGH:
        wanted = {item for item in items if item in left_out or not MORE.isdisjoint(dir(getattr(item, "module", None)))}
        left_out = dict.fromkeys(item for item in items if item not in wanted)
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if FREE_THREADED and item.get_closest_marker("drops_at_once") is not None:
        pytest.skip("on a free-threaded build objects end later, or the collector runs at other times")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than processors, since some tests wait. This process alone where there may be a card: the tests on it
    measure what it holds."""
    return 0 if importlib.util.find_spec("cupy") is not None else min((os.cpu_count() or 1) + 1, 8)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The collector rests until the tests are found: there are many, and all of them stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        freeze()
        gc.enable()


@pytest.fixture(autouse=True, scope="module")
def frozen() -> None:
    freeze()


def freeze() -> None:
    """What was made before lives to the end: the collector, which many tests run, need not look at it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def deadlocks_are_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of pytest's own processes might act, so here no deadlock is certain: as if 10 s had passed."""
    monkeypatch.setattr("asyncsched.runtime.stall.PROBABLE", 0.2)
    monkeypatch.setattr("asyncsched.runtime.stall.RARE", 0.5)


@pytest.fixture(autouse=True)
def nothing_unhandled() -> Iterator[None]:
    """What fails in a callback or in a task that nobody awaits fails the test."""
    _unhandled.clear()
    yield
    assert not _unhandled


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """`array_api` and `cluster.get` keep a scheduler open for whoever calls them next: not for the next test."""
    yield
    for module, name in (("array_api.array", "kept"), ("cluster.compute", "_kept")):
        kept = getattr(sys.modules.get(f"asyncsched.{module}"), name, None)
        if kept is not None:
            kept.replace(kept.replace({}))


class FailingLog(logging.Handler):
    """A filter and a handler that raise. Keeps the texts that it was to log."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error, self.texts = error, list[str]()

    def handle(self, record: logging.LogRecord) -> bool:
        self.texts.append(record.getMessage())
        raise self.error

    filter = handle


@pytest.fixture(params=["filter", "handler", "handler cancelled"])
def failing_log(request: pytest.FixtureRequest) -> Iterator[FailingLog]:
    """What logs has a filter or a handler of the user's that raises."""
    failing = FailingLog(asyncio.CancelledError() if "cancelled" in request.param else ValueError("the user's"))
    loggers = [logging.getLogger(name) for name in ("asyncsched", "asyncsched.serving")]
    for logger in loggers:
        (logger.addFilter if request.param == "filter" else logger.addHandler)(failing)
    yield failing
    for logger in loggers:
        logger.removeFilter(failing)
        logger.removeHandler(failing)


@pytest.fixture(scope="session")
def guard() -> Iterator[BlockBuster]:
    """Set up once: each of its functions takes time to find and to replace."""
    guard = BlockBuster()
    del guard.functions["io.TextIOWrapper.write"]  # where log records go is the user's business
    for function in guard.functions.values():
        # Else the end of a test's time would fail to tell so, and what it raised instead could be swallowed.
        function.can_block_in("pytest_timeout.py", "timeout_sigalrm")
        function.can_block_in("asyncio/runners.py", "close")  # where uvloop joins a thread that is about to end
    guard.activate()
    yield guard
    guard.deactivate()


@pytest.fixture(autouse=True)
def blockbuster(guard: BlockBuster) -> Iterator[BlockBuster]:
    """Blocking calls on a thread that runs a loop raise, unless a test deactivates it."""
    yield guard
    guard.activate()


@pytest.fixture
def may_block(blockbuster: BlockBuster) -> None:
    """For tests in which something is imported, or looked for, when the event loop runs: that reads files."""
    blockbuster.deactivate()


@pytest.fixture
def torch() -> Any:
    """Imported where no loop runs."""
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture
def jax() -> Any:
    """Imported where no loop runs."""
    return pytest.importorskip("jax", reason="JAX is not installed")


@pytest.fixture
def torch_may_block(may_block: None, torch: Any) -> None:
    """For tests of PyTorch, which reads files when it is first used. Its threads would spin while they wait."""
    torch.set_num_threads(1)


@pytest.fixture
async def s() -> AsyncIterator[asc.Scheduler]:
    """A scheduler on the CPU, with the default limits. It closes at the end, and raises what nobody has seen."""
    async with asc.Scheduler("cpu") as scheduler:
        yield scheduler


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a task waits for: see `tests.waiting.held`. A test that fails leaves none waiting."""
    event = threading.Event()
    yield event
    event.set()
