"""Bare values: quick rows in the backlog that have no task until somebody needs it. The books are as with tasks."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from asyncsched._core.instrument import Instrument
from asyncsched._core.model import Bare, Scope, Task, Value, new_value, task_of

from .rig import Rig, answered, cancellation, names


def held_up(**options: int | None) -> tuple[Rig, Task]:
    """A rig whose only slot is taken."""
    rig = Rig(max_ops=1, **options)
    slow, _ = rig.submit(name="slow")
    rig.dispatch()
    return rig, slow


def bare(value: Value) -> bool:
    return type(value.task) is Bare


def own(value: Value) -> Task:
    task = task_of(value)
    assert task is not None
    return task


def test_they_are_made_in_their_turn_without_a_task():
    rig, slow = held_up()
    first = rig.bare(cost=2)
    chain = [first]
    for _ in range(3):
        chain.append(rig.bare(chain[-1], cost=2))
    assert all(bare(value) and not value.done for value in chain)
    assert rig.engine.unfinished == 5
    assert rig.engine.admission.pending == rig.root.bare == 4
    rig.finish(slow)
    rig.dispatch()
    assert rig.made == chain[1:]
    assert len(rig.ran) == 1  # the head, which the engine looks at as at any other
    assert all(value.done and value.seq == -1 for value in chain)
    assert [value.task for value in chain] == [*rig.ran, None, None, None]
    assert rig.engine.account.used == 8
    assert rig.engine.completed == rig.engine.submitted == 5
    rig.engine.validate()


def test_one_is_a_value_like_any_other():
    rig, _ = held_up()
    value = rig.bare(cost=2)
    plain = new_value(value.account, value.device, value.meta, value.nbytes, value.site)
    known = [{name: getattr(v, name) for name in Value.__slots__ if hasattr(v, name)} for v in (value, plain)]
    own_alone = {name: known[0][name] for name in ("plan", "reads", "args", "task", "seq")}
    assert known[0] == known[1] | own_alone


def test_what_is_dropped_is_free_as_soon_as_it_is_made_and_read():
    rig, slow = held_up(max_bytes=10)
    last = rig.bare(cost=4)
    for _ in range(5):
        last = rig.bare(last, cost=4)
    rig.finish(slow)
    rig.made = Discarding()
    rig.dispatch()
    assert last.done
    assert rig.engine.account.used == 4
    assert rig.engine.peak_bytes == 8


class Discarding(list[Value]):
    def append(self, value: Value) -> None:
        """Keeps nothing: what it was given is the only reference."""


def test_a_full_backlog_refuses_them_as_it_does_tasks():
    rig, slow = held_up(max_pending=2)
    assert bare(rig.bare())
    assert bare(rig.bare())
    assert not bare(rig.bare())  # the rig submits a task that is not bounded in its place
    rig.finish(slow)
    rig.run()


@pytest.mark.parametrize("place", [0, 1, 2])
def test_who_awaits_one_is_told_in_time(place):
    rig, slow = held_up()
    values = [rig.bare(name=str(i)) for i in range(3)]
    told: list[Task] = []
    own(values[place]).waiters = [answered(told)]
    assert [bare(value) for value in values] == [i != place for i in range(3)]
    rig.finish(slow)
    rig.dispatch()
    assert names(told) == [str(place)]
    assert all(value.done for value in values)
    rig.engine.validate()


def test_to_wait_for_the_last_of_a_long_chain_makes_one_task():
    rig, slow = held_up()
    last = rig.bare()
    for _ in range(1000):
        last = rig.bare(last)
    task = rig.root.one_unfinished()
    assert task is last.task
    assert rig.root.bare == 1000
    rig.finish(slow)
    rig.dispatch()
    assert not rig.root.bare or rig.dispatch() == []


def test_one_unfinished_is_of_those_before():
    rig, slow = held_up()
    first = rig.bare(name="first")
    before = rig.engine.sequence
    rig.bare(name="later")
    found = rig.root.one_unfinished(before)
    assert found is first.task
    rig.finish(slow)
    rig.dispatch()
    assert rig.root.one_unfinished(before) is None


def test_a_task_that_reads_one_waits_for_it():
    rig, slow = held_up()
    value = rig.bare()
    reader, _ = rig.submit(value, name="reader")
    assert reader.blockers == 1
    assert not bare(value)
    rig.finish(slow)
    assert rig.dispatch() == [reader]
    assert names(rig.ran) == ["bare"]


def test_what_reads_a_task_that_is_not_done_is_no_bare_value():
    rig, slow = held_up()
    task, value = rig.submit(name="heavy")
    reader = rig.bare(value)
    assert not bare(reader)
    assert own(reader).blockers == 1
    rig.finish(slow)
    assert task in rig.dispatch()


def test_none_is_bare_that_may_go_at_once_or_is_observed():
    rig = Rig(max_ops=2)
    assert rig.bare().done or not rig.root.bare
    rig, _ = held_up()
    rig.engine.observer = Instrument()
    assert not bare(rig.bare())


def test_an_instrument_that_comes_later_is_told_of_their_launch():
    class Told(Instrument):
        def __init__(self) -> None:
            self.launched: list[str] = []

        def task_launched(self, task: Task) -> None:
            self.launched.append(task.name)

    rig, slow = held_up()
    rig.bare(name="a")
    rig.bare(name="b")
    told = rig.engine.observer = Told()
    rig.finish(slow)
    rig.dispatch()
    assert told.launched == ["a", "b"]


def test_a_cancelled_one_takes_with_it_what_depends_on_it():
    rig, slow = held_up()
    first = rig.bare(name="first")
    second = rig.bare(first, name="second")
    third = rig.bare(second, first, name="third")
    other = rig.bare(name="other")
    assert rig.cancel(own(first))
    assert all(value.done and value.failure is not None for value in (first, second, third))
    assert not other.done
    rig.engine.validate()
    rig.finish(slow)
    rig.dispatch()
    assert other.done
    assert other.failure is None
    assert rig.engine.cancelled == 3


def test_the_books_are_in_order_before_it_is_noted_who_waits_for_whom():
    rig, slow = held_up()
    first = rig.bare()
    rig.bare(first)
    rig.engine.validate()
    rig.cancel(own(first))
    rig.engine.validate()
    rig.finish(slow)
    rig.run()
    rig.engine.validate()


def test_all_of_a_scope_are_cancelled():
    rig, slow = held_up()
    scope = rig.scope(own_queue=False)
    values = [rig.bare(scope=scope) for _ in range(3)]
    beside = rig.bare(values[0])
    for task in scope.unfinished():
        rig.cancel(task)
    assert all(value.failure is not None for value in (*values, beside))
    assert scope.size == rig.root.bare == 0
    rig.engine.close_scope(scope)
    rig.finish(slow)
    rig.run()
    rig.engine.validate()


def test_one_that_does_not_run_here_goes_to_a_stream():
    """As when the loop's thread was held up enough, or its function raises."""
    rig, slow = held_up()
    values = [rig.bare(name=str(i)) for i in range(3)]
    rig.before_bare = lambda value: own(value) and None
    rig._run_quick = lambda task: False  # type: ignore[method-assign]
    rig.engine.run = lambda task: False
    rig.engine.here = lambda task: None
    rig.finish(slow)
    assert names(rig.run()) == ["0", "1", "2"]
    assert all(value.done for value in values)
    rig.engine.validate()


@pytest.mark.parametrize("when", ["before_bare", "after_bare"])
@pytest.mark.parametrize(
    "what", ["cancels it", "cancels the next", "cancels all", "awaits it", "submits", "expedites", "looks"]
)
def test_a_finaliser_while_one_is_made(what, when):
    rig, slow = held_up()
    values = [rig.bare(name=str(i)) for i in range(5)]
    cancelled = 0

    def finaliser(value: Value) -> None:
        nonlocal cancelled
        setattr(rig, when, lambda value: None)
        if what.startswith("cancels"):
            number = values.index(value)
            for other in {"it": values[number:][:1], "next": values[number + 1 :][:1]}.get(what.split()[-1], values):
                if not other.done:
                    cancelled += rig.engine.cancel(own(other), cancellation(own(other)))
        elif what == "awaits it":
            task_of(value)
        elif what == "expedites":
            task_of(value)
            values.append(rig.submit(quick=True, expedited=True)[1])
        elif what == "submits":
            values.append(rig.bare(values[2], name="new"))
        else:
            rig.root.unfinished()

    setattr(rig, when, finaliser)
    rig.finish(slow)
    rig.run()
    assert getattr(rig, when) is not finaliser
    assert all(value.done for value in values)
    assert rig.engine.cancelled == cancelled
    rig.engine.validate()
    assert not rig.engine.unfinished


class Twin:
    """The same history with bare values where there may be some, and with tasks."""

    def __init__(self, dice: random.Random, as_tasks: bool) -> None:
        self.dice = dice
        self.as_tasks = as_tasks
        self.rig = Rig(max_ops=dice.choice([1, 2, 3]), max_bytes=dice.choice([None, 60, 200]), lanes=2)
        self.values: list[Value | None] = []
        self.scopes: list[Scope] = [self.rig.root]
        self.bare = 0
        self.rig.made = Discarding()
        if as_tasks:
            self.rig.engine.submit_bare = lambda *args: None  # type: ignore[method-assign]

    def step(self) -> None:
        dice, rig = self.dice, self.rig
        kind = dice.choices(
            ["bare", "task", "finish", "dispatch", "cancel", "wait", "drop", "scope", "all"],
            [60, 10, 16, 4, 2, 3, 10, 1, 1],
        )[0]
        held = [value for value in self.values if value is not None]
        reads = [dice.choice(held) for _ in range(dice.choice([0, 1, 1, 2]))] if held else []
        scope, cost, pick = dice.choice(self.scopes), dice.randrange(6), dice.randrange(10_000)
        if kind == "bare":
            value = rig.bare(*reads, cost=cost, scope=scope, name="boom" if pick % 40 == 0 else "bare")
            self.bare += bare(value)
            self.values.append(value)
        elif kind == "task":
            name = "boom" if pick % 10 == 0 else "task"
            self.values.append(rig.submit(*reads, cost=cost, scope=scope, name=name)[1])
            rig.dispatch()
        elif kind == "finish":
            streams = [stream for stream in rig.streams.values() if stream]
            if streams:
                rig.finish(streams[pick % len(streams)][0])
                rig.dispatch()
        elif kind == "dispatch":
            rig.dispatch()
        elif kind == "scope" and len(self.scopes) < 4:
            self.scopes.append(rig.scope(own_queue=dice.random() < 0.5))
        elif kind == "all":
            rig.root.unfinished()
        elif held:
            value = held[pick % len(held)]
            if kind == "cancel" and not value.done:
                rig.cancel(own(value))
                rig.dispatch()
            elif kind == "wait":
                task_of(value)
            elif kind == "drop":
                self.values[self.values.index(value)] = None

    def end(self) -> Sequence[object]:
        self.rig.run()
        self.rig.engine.validate()
        engine = self.rig.engine
        ends = [value and (value.done, value.failure is not None) for value in self.values]
        return ends, engine.unfinished, engine.completed, engine.failed, engine.cancelled, engine.submitted


@pytest.mark.parametrize("seed", range(200))
def test_the_same_history_with_and_without(seed):
    made = 0
    found = []
    for as_tasks in (False, True):
        twin = Twin(random.Random(seed), as_tasks)
        for _ in range(120):
            twin.step()
        found.append(twin.end())
        made += twin.bare
    assert found[0] == found[1]
    assert seed or made
