"""The plugin for users' own tests: its fixtures, under each way of running asynchronous tests."""

from __future__ import annotations

import os
import sys

import pytest

from asyncsched.testing import lifespan

pytest_plugins = "pytester"

STRICT = "import pytest\n\npytestmark = pytest.mark.asyncio\n"
ANYIO = """
import pytest

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"
"""
WAYS = pytest.mark.parametrize(
    ("head", "mode"),
    [(STRICT, "strict"), ("", "auto"), (ANYIO, "strict")],
    ids=["pytest-asyncio strict", "pytest-asyncio auto", "anyio"],
)


@pytest.fixture(autouse=True)
def of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes find what this one does. Hypothesis, which they do not use, would take a second to load in each."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p no:xdist -p no:cacheprovider")


def run(pytester: pytest.Pytester, mode: str, **files: str) -> pytest.RunResult:
    """Run a user's tests in a process of their own, where all warnings are errors."""
    pytester.makeconftest('pytest_plugins = "asyncsched.testing"\n')
    pytester.makeini(
        f"[pytest]\nasyncio_mode = {mode}\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    )
    pytester.makepyfile(**files)
    return pytester.runpytest_subprocess("-rfE")


CLEAN = """
import logging

import asyncsched as asc
import numpy as np
import pytest


async def test_ambient(scheduler):
    x = asc.ones(2)
    y = x + 1
    assert (await y).tolist() == [2, 2]
    assert scheduler.statistics().tasks_submitted == 2


@pytest.fixture
def scheduler_options():
    return {"device": "cpu", "max_bytes": "1 MiB"}


@pytest.fixture
async def weights(scheduler):
    return await scheduler.put(np.ones(1000))


async def test_a_fixture_of_mine(scheduler, weights):
    assert await weights.sum().item() == 1000
    assert scheduler.statistics().max_bytes == 2**20


@pytest.mark.parametrize("scheduler_options", [{"device": "cpu", "max_ops": 1}])
async def test_options_as_parameters(scheduler):
    assert scheduler.statistics().max_ops == 1


class TestInAClass:
    async def test_keeps_in_itself(self, scheduler):
        self.x = await scheduler.put(np.ones(100))

    async def test_its_own(self, scheduler):
        assert scheduler.statistics().tasks_submitted == 0
        async with scheduler.scope():
            assert await scheduler.call(divmod, 7, 2) == (3, 1)


async def test_a_circle_is_nobodys_fault(scheduler):
    circle = [await scheduler.put(np.ones(100))]
    circle.append(circle)


async def test_logs(scheduler):
    logging.getLogger("mine").warning("what is %s", await scheduler.put(np.ones(100)))


async def test_expects_a_failure(scheduler):
    x = await scheduler.put(np.ones(100))
    with pytest.raises(ZeroDivisionError) as caught:
        await scheduler.call(divmod, 1, 0)
    error = caught.value


async def test_need_not_await_what_it_issues_last(scheduler):
    x = await scheduler.put(np.ones((100, 100)))
    for _ in range(50):
        x = x @ x * 0.01


async def test_closed_by_itself(scheduler):
    await scheduler.aclose()
"""


LEAVES = """
import asyncio
import threading
import asyncsched as asc
import asyncsched.testing
import numpy as np
import pytest

kept = []
started, gate = threading.Event(), threading.Event()


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(asyncsched.testing, "_LAST", 0.01)


@pytest.fixture
def scheduler_options():
    return {"device": "cpu", "streams": 1}


def endless():
    started.set()
    gate.wait(60)


async def test_tensors(scheduler):
    global held
    held = await scheduler.put(np.ones(1000))  # held
    kept.append(held * 2)  # product
    await scheduler.barrier()


async def test_an_array(scheduler):
    kept.append(await asc.ones(10))  # awaited


async def test_a_task(scheduler):
    scheduler.submit_nowait(endless)  # running
    for _ in range(3):
        scheduler.submit_nowait(print, name="behind")
    while not started.is_set():
        await asyncio.sleep(0)


async def test_a_failure(scheduler):
    scheduler.submit_nowait(int, "none")  # failing
    await asc.ones(1)


async def test_that_fails(scheduler):
    x = await scheduler.put(np.ones(1000))
    scheduler.submit_nowait(print)
    raise LookupError("the test's own")
"""


SIMULATED = """
import asyncio

import asyncsched as asc
import numpy as np
import pytest

kept = []


@pytest.mark.parametrize("seed", range(20))
async def test_a_race(sim_scheduler, seed):
    async with sim_scheduler(seed, max_bytes="1 MiB") as s:
        x = await s.put(np.arange(3.0))
        first, second = asyncio.ensure_future(x + 1), asyncio.ensure_future(x * 2)
        await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
        assert first.done() or second.done()
        assert (await second).tolist() == [0, 2, 4]
        await first


async def test_seeds_in_a_loop_differ(sim_scheduler):
    orders = set()
    for seed in range(20):
        order = []
        async with sim_scheduler(seed) as s:
            for name in "ab":
                s.submit_nowait(order.append, name)
        orders.add("".join(order))
    assert orders == {"ab", "ba"}


async def test_a_fault(sim_scheduler):
    async with sim_scheduler(4, fault_rate=1) as s:
        await s.call(print)


async def test_that_keeps(sim_scheduler):
    async with sim_scheduler(5) as s:
        kept.append(asc.ones(1000))  # simulated
"""


def test_without_a_plugin_for_asynchronous_tests(pytester):
    pytester.makepyfile(test_mine="def test_sync(scheduler): pass")
    result = pytester.runpytest_subprocess("-p", "no:asyncio", "-p", "asyncsched.testing")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*needs pytest-asyncio, or a test marked `pytest.mark.anyio`"])


def test_the_plugin_is_loaded_only_on_request(pytester):
    pytester.makepyfile(test_mine="import sys\n\ndef test(): assert 'asyncsched' not in sys.modules")
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


SERVED = """
import asyncsched as asc
import httpx
import pytest
from asyncsched.serving import Serving
from asyncsched.testing import lifespan
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route


batcher = asc.Batcher(lambda numbers: [n * n for n in numbers])  # of the module: each test has a loop of its own


async def square(request):
    return JSONResponse({"answer": await batcher(int(request.query_params["x"]))})


def make_app():
    app = Starlette(routes=[Route("/square", square)])
    app.add_middleware(Serving)
    return app


app = make_app()


@pytest.fixture
async def client():
    async with lifespan(app) as started:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(started), base_url="http://test") as client:
            yield client


async def test_square(client):
    assert (await client.get("/square?x=3")).json() == {"answer": 9}


async def test_again(client):
    assert (await client.get("/readyz")).status_code == 200
    assert (await client.get("/square?x=4")).json() == {"answer": 16}


async def test_nobody_started_it():
    async with httpx.AsyncClient(transport=httpx.ASGITransport(make_app()), base_url="http://test") as client:
        with pytest.raises(RuntimeError, match="async with asyncsched.testing.lifespan"):
            await client.get("/square?x=3")
"""


def place(pytester: pytest.Pytester, text: str) -> str:
    """File and line of a comment of those tests."""
    files = {path: path.read_text(encoding="utf-8").splitlines() for path in pytester.path.glob("test_*.py")}
    [found] = [f"{file}:{i}" for file, lines in files.items() for i, line in enumerate(lines, 1) if f"# {text}" in line]
    return found


@WAYS
def test_leftovers_are_named_and_a_clean_test_passes(pytester, head, mode):
    """All in one process: those that leave something, and those after them that do not."""
    pytest.importorskip("httpx", reason="asyncsched[test]")
    pytest.importorskip("starlette", reason="asyncsched[test]")
    files = {"test_leaves": LEAVES, "test_clean": CLEAN, "test_served": SERVED, "test_simulated": SIMULATED}
    if head is STRICT:
        asynchronous = "import pytest_asyncio\n\n\n@pytest_asyncio.fixture\nasync def"
        files = {name: text.replace("@pytest.fixture\nasync def", asynchronous) for name, text in files.items()}
    result = run(pytester, mode, **{name: head + text for name, text in files.items()})
    ends = {line.partition(" - ")[0] for line in result.outlines if line.startswith(("FAILED", "ERROR"))}
    left = [
        f"ERROR test_leaves.py::{name}" for name in ("test_tensors", "test_an_array", "test_a_task", "test_a_failure")
    ]
    assert ends == {
        *left,
        "FAILED test_leaves.py::test_that_fails",
        "FAILED test_simulated.py::test_a_fault",
        "ERROR test_simulated.py::test_that_keeps",
    }
    result.assert_outcomes(passed=4 + 10 + 3 + 22, failed=2, errors=5)
    result.stdout.fnmatch_lines_random(
        [
            "FAILED test_leaves.py::test_that_fails - LookupError*",
            "ERROR test_leaves.py::test_tensors - Failed: the test left behind:*",
            f"  8,000 bytes created at {place(pytester, 'held')} in test_tensors: *module test_leaves*held*",
            f"  8,000 bytes created at {place(pytester, 'product')} in test_tensors: *module test_leaves*kept*",
            f"  80 bytes in awaited arrays, created at {place(pytester, 'awaited')} in test_an_array: *",
            "ERROR test_leaves.py::test_a_task - Failed: the test left behind:*",
            f"  endless, submitted at {place(pytester, 'running')} in test_a_task, which does not end*",
            "  3 x behind, submitted at *, which does not end*",
            "  after 0.01 s these tasks still run: endless, *(they end by themselves, *",
            "ERROR test_leaves.py::test_a_failure - *",
            f"*'int', submitted at {place(pytester, 'failing')}*",
            "*SimFault: injected into *",
            "*sim_scheduler(seed=4)",
            f"  8,000 bytes created at {place(pytester, 'simulated')} in test_that_keeps: *module test_simulated*kept*",
        ]
    )


class Refused(Exception):
    pass


@pytest.mark.parametrize("phase", ["startup", "shutdown"])
@pytest.mark.parametrize("says", [True, False], ids=["said", "raised"])
async def test_an_application_that_does_not_start_or_stop(phase, says):
    async def app(scope, receive, send):
        while True:
            kind = (await receive())["type"]
            if kind == f"lifespan.{phase}":
                if says:
                    return await send({"type": f"{kind}.failed", "message": "no"})
                raise Refused
            await send({"type": f"{kind}.complete"})

    entered = False
    with pytest.raises(RuntimeError if says else Refused, match=f"{phase} failed: no" if says else None):
        async with lifespan(app):
            entered = True
    assert entered == (phase == "shutdown")
