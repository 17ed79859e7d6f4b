"""A user's own tests: a fixture that opens a scheduler, under each way of running asynchronous tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import asyncio

import anyio
import asyncsched as asc
import pytest
{head}

{fixture}
async def scheduler():
    async with asc.Scheduler("cpu") as s:
        yield s


{fixture}
async def scope(scheduler):
    async with scheduler.scope(name="mine", reserve=1000) as scope:
        yield scope


async def test_the_scheduler_is_ambient(scheduler):
    x = asc.ones(2)
    assert await (x + 1).sum().item() == 4.0
    await scheduler.barrier()


async def test_so_is_a_scope_within(scheduler, scope):
    task = scheduler.submit_nowait(int, "7")
    assert await task == 7
    assert "mine" in repr(scope)
    assert scheduler.statistics().bytes_reserved == 1000


async def test_each_test_has_its_own(scheduler):
    assert scheduler.statistics().tasks_submitted == 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()
    with anyio.CancelScope(shield=True):
        assert await scheduler.call(int, "8") == 8


async def test_without_one_there_is_none():
    with pytest.raises(asc.SchedulerClosed):
        asc.ones(2)


async def test_an_unseen_failure_is_an_error_of_the_fixture(scheduler):
    scheduler.submit_nowait(int, "none")


async def test_a_failing_test_leaves_no_work(scheduler):
    scheduler.submit_nowait(int, "7")
    raise LookupError("the test's own")
"""
STRICT = "import pytest_asyncio\n\npytestmark = pytest.mark.asyncio\n"
ANYIO = """
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"
"""


@pytest.mark.parametrize(
    ("head", "fixture", "mode"),
    [
        (STRICT, "@pytest_asyncio.fixture", "strict"),
        ("", "@pytest.fixture", "auto"),
        (ANYIO, "@pytest.fixture", "strict"),
    ],
    ids=["pytest-asyncio strict", "pytest-asyncio auto", "anyio"],
)
def test_a_users_own_tests(head: str, fixture: str, mode: str, tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TESTS.format(head=head, fixture=fixture))
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\nasyncio_mode = {mode}\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-rfE",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hypothesispytest",
    ]
    there = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTEST_ADDOPTS": "", "COLUMNS": "200"}
    told = subprocess.run(command, cwd=tmp_path, env=there, capture_output=True, text=True, check=False).stdout
    ends = re.findall(r"^(FAILED|ERROR) test_mine\.py::(\w+) - (\w+)", told, re.MULTILINE)
    assert sorted(ends) == [
        ("ERROR", "test_an_unseen_failure_is_an_error_of_the_fixture", "ValueError"),
        ("FAILED", "test_a_failing_test_leaves_no_work", "LookupError"),
    ], told
    assert "1 failed, 5 passed, 1 error" in told
