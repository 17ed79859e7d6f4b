"""Every error names the command that prints its cause and its cure, and `ERRORS.md` has both."""

from __future__ import annotations

import copy
import pickle
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import asyncsched as asc
from asyncsched.__main__ import main
from asyncsched.cluster.connection import ResultLost
from asyncsched.cluster.work import CardOutOfMemory
from asyncsched.errors import LimitTooSmall

NEVER_RAISED = LimitTooSmall.__name__  # those derived from it are


def derived(kind: type[Any]) -> Iterator[type[Any]]:
    yield kind
    for one in kind.__subclasses__():
        yield from derived(one)


OURS = {kind.__name__: kind for kind in derived(asc.AsyncSchedError) if kind.__module__.startswith("asyncsched.")}


def test_all_errors_are_looked_at():
    files = Path(asc.__file__).parent.rglob("*.py")
    found = {name for path in files for name in re.findall(r"^class (\w+)\(.*AsyncSchedError", path.read_text(), re.M)}
    assert found <= OURS.keys()
    assert {CardOutOfMemory, ResultLost, asc.Preempted} < set(OURS.values())


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_note_has_the_command_and_the_message_stays_as_it_is(name):
    error = OURS[name]("no")
    command = f"python -m asyncsched explain {name}"
    for each in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert each.__notes__ == [f"cause and cure: `{command}`"]
        assert str(each) == "no"


@pytest.mark.parametrize("name", sorted({*OURS, "ExceptionGroup"} - {NEVER_RAISED}))
def test_the_command_prints_cause_and_cure(name):
    for written in (name, f"asyncsched.errors.{name}"):  # as one reads it in code, and in a traceback
        text = main(["explain", written])
        assert text.startswith(f"{name}\n")
        assert "**Cause.** " in text
        assert "**Cure.** " in text
        assert "\n## " not in text


def test_a_name_that_is_no_error(capsys):
    with pytest.raises(SystemExit):
        main(["explain", "QueueFul"])
    assert "there is no error 'QueueFul'; there are QueueFull, TaskTooLarge," in capsys.readouterr().err


async def test_an_error_raised_again_and_again_has_the_note_once(s):
    first = s.submit_nowait(sum, range(1_000_000))
    waits = s.submit_nowait(max, first, 1)
    reads = s.submit_nowait(min, waits, 1)
    waits.cancel()
    for task in (waits, reads, waits, reads):
        with pytest.raises(asc.TaskCancelled) as caught:
            await task
        assert sum("explain TaskCancelled" in note for note in caught.value.__notes__) == 1
    await first


def test_a_traceback_shows_it_below_the_message():
    *_, message, note = traceback.format_exception(asc.SchedulerClosed("it is closed"))
    assert message == "asyncsched.errors.SchedulerClosed: it is closed\n"
    assert note == "cause and cure: `python -m asyncsched explain SchedulerClosed`\n"
