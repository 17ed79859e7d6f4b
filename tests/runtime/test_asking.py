"""Asking an event loop on another thread."""

from __future__ import annotations

import asyncio

import pytest

from asyncsched.runtime.loops import answered, ask_async
from tests.waiting import turns


async def cancels_all(after: int) -> None:
    """As `asyncio.run` does at its end."""
    await turns(after)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await turns(3)


@pytest.mark.parametrize("after", [0, 2], ids=["not begun", "begun"])
def test_asking_a_loop_that_ends_gets_an_answer(after: int) -> None:
    with asyncio.Runner() as runner:
        begun, ended = list[int](), list[int]()

        async def waits() -> None:
            begun.append(1)
            await asyncio.Event().wait()

        answer = ask_async(runner.get_loop(), waits, lambda: ended.append(1))
        runner.run(cancels_all(after))
        assert bool(begun) is bool(after)
        assert ended == [1]
        assert not answer.empty()
        with pytest.raises(asyncio.CancelledError):
            answered(answer)
